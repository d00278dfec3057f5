// SPDX-License-Identifier: Apache-2.0
//
// KernelCommand: a verb of `kiln` while it is declared, with the options that its verbs share:
// which packages, of which registry, for which machine, out of which cache. Over frame/command.hpp.
// A verb is a file in this folder, a line of verbs.hpp and a row of main.cpp's table.
//
//   void path(KernelCommand& command) {
//     command.takes_package();
//     command.takes_cache();
//     command.example("geglu-mlp@1", "the file that get_kernel would load");
//     command.runs([](const Options& options) { …; return 0; });
//   }
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/host.hpp"
#include "kiln/request.hpp"
#include "loader/cli/frame/command.hpp"
#include "store/cache.hpp"

namespace kiln::cli {

/// "geglu-mlp@1". Version 0: none was given.
struct Spec {
  std::string name;
  int version = 0;

  std::string text() const;
  /// Whether it names this version; without a version it names all of the package.
  bool names(const std::string& package, int of_version) const {
    return name == package && (version == 0 || version == of_version);
  }
};

/// Throws kUsage, saying which half is wrong, for text that is not NAME or NAME@VERSION.
Spec parse_spec(const std::string& text);

/// The facts of a machine, as `kiln host --json` wrote them there. Throws kUsage for a file that
/// cannot be read, kIntegrity for another document.
Host read_host(const std::string& path);

struct Options : Call {
  std::vector<Spec> specs;
  Request request;           ///< everything but the version, which comes from each spec
  std::optional<Host> host;  ///< another machine's facts
  bool dev = false;          ///< install, path: what one compiles against, in place of the library

  /// Throws kUsage, with the versions that there are, if neither the spec nor a lock file has one.
  Request request_for(const Spec& spec) const;
  /// The cache to read, clean or repair. Throws kNotFound for a --cache that is not there: it was
  /// mistyped. The default one may still have to be made.
  Cache existing_cache() const;
  /// That nothing newer than what the cache knows is seen, where that is so.
  void tell_offline() const;
  /// What to do about what is damaged.
  void tell_repair() const;
  /// The packages that are named; where none is, all that the lock file has.
  std::vector<Spec> specs_or_locked() const;
};

class KernelCommand : public Command {
 public:
  explicit KernelCommand(const Command& command);

  void takes_package();         ///< NAME@VERSION
  Option takes_packages();      ///< any number of them
  void takes_named_packages();  ///< one at least
  void takes_cache();           ///< --cache
  void takes_registry();        ///< --registry, --from, --offline
  void takes_offline();         ///< --offline alone
  void takes_device();          ///< --device, --no-jit
  void takes_choice();          ///< both, --variant, --deny, --fallback, …
  void takes_lock();            ///< --lock, --locked, --frozen
  void takes_kernel();  ///< one package, all that chooses its variant, a lock file, the cache
  void takes_host();    ///< --host
  void takes_dev();     ///< --dev

  void runs(std::function<int(const Options&)> run);

 private:
  struct Typed;
  std::shared_ptr<Typed> typed_;  ///< the words as they were typed; shared with what runs
};

}  // namespace kiln::cli
