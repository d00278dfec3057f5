// SPDX-License-Identifier: Apache-2.0
//
// RegistryCommand: a verb of `kiln registry` while it is declared, with what its verbs share: the
// registry, keys, steps on stderr. Over loader/cli/frame/command.hpp. A verb is a file in this
// folder, a line of verbs.hpp and a row of main.cpp's table.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "loader/cli/frame/command.hpp"
#include "registry/folder/submission.hpp"
#include "registry/trust/keys.hpp"

namespace kiln::registry {

struct RegistryCall : cli::Call {
  std::string registry;  ///< folder, or URL where the verb takes one
  Progress progress;     ///< on stderr; silent with --quiet
};

class RegistryCommand : public cli::Command {
 public:
  explicit RegistryCommand(const cli::Command& command);

  /// --registry, default $KILN_REGISTRY. Without either the command is kUsage.
  void takes_registry(
      const std::string& help = "Folder with one OCI layout per package; default $KILN_REGISTRY");
  /// The same for a verb that can do without.
  void may_take_registry();

  /// --key, private ones.
  cli::Option takes_keys(std::vector<std::string>& keys);

  void runs(std::function<int(const RegistryCall&)> run);

 private:
  struct Typed;
  std::shared_ptr<Typed> typed_;
};

/// Throws kUsage: no registry is named.
[[noreturn]] void fail_without_registry(const cli::Call& call);

/// Of private keys: $KILN_KEY_PASSPHRASE, which no list of processes shows.
std::string passphrase();

std::vector<PrivateKey> open_keys(const std::vector<std::string>& names);
std::vector<trust::Key> read_keys(const std::vector<std::filesystem::path>& files);

}  // namespace kiln::registry
