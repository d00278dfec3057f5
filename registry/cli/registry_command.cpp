// SPDX-License-Identifier: Apache-2.0
#include "registry/cli/registry_command.hpp"

#include <utility>

#include "kiln/error.hpp"
#include "loader/cli/frame/output.hpp"
#include "settings/environment.hpp"

namespace kiln::registry {

struct RegistryCommand::Typed {
  std::string registry{environment().text("KILN_REGISTRY")};
  bool needs_registry = false;
};

RegistryCommand::RegistryCommand(const cli::Command& command)
    : Command(command), typed_(std::make_shared<Typed>()) {}

void RegistryCommand::takes_registry(const std::string& help) {
  option("--registry", typed_->registry, "FOLDER", help);
  typed_->needs_registry = true;
}

void RegistryCommand::may_take_registry() {
  takes_registry();
  typed_->needs_registry = false;
}

cli::Option RegistryCommand::takes_keys(std::vector<std::string>& keys) {
  return option("--key", keys, "KEY",
                "Private key: a file, or a URI of OpenSSL like pkcs11:… (repeatable); "
                "$KILN_KEY_PASSPHRASE opens it");
}

void RegistryCommand::runs(std::function<int(const RegistryCall&)> run) {
  Command::runs([typed = typed_, run = std::move(run)](const cli::Call& call) {
    if (typed->needs_registry && typed->registry.empty()) fail_without_registry(call);
    return run({call, typed->registry, cli::steps_on_stderr(call.quiet)});
  });
}

void fail_without_registry(const cli::Call& call) {
  throw Error(ErrorCode::kUsage,
              call.command + ": no registry is named: give --registry DIR or set KILN_REGISTRY");
}

std::string passphrase() {
  return std::string(environment().text("KILN_KEY_PASSPHRASE"));
}

std::vector<PrivateKey> open_keys(const std::vector<std::string>& names) {
  std::vector<PrivateKey> keys;
  keys.reserve(names.size());
  for (const std::string& name : names) keys.push_back(PrivateKey::open(name, passphrase()));
  return keys;
}

std::vector<trust::Key> read_keys(const std::vector<std::filesystem::path>& files) {
  std::vector<trust::Key> keys;
  keys.reserve(files.size());
  for (const std::filesystem::path& file : files) keys.push_back(read_public_key(file));
  return keys;
}

}  // namespace kiln::registry
