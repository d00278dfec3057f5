// SPDX-License-Identifier: Apache-2.0
//
// Commands: what each word of `kiln` does. A command is one file here, one line in the list below
// and one row of main.cpp's table. The function declares what the command takes, gives examples and
// says what runs. What runs gets the parsed options, prints its result on stdout (with --json as
// one JSON document), progress on stderr, returns the exit code, and throws kiln::Error.
//
//   void path(Command& command) {
//     command.takes_package();
//     command.takes_cache();
//     command.example("geglu-mlp@1", "the file that get_kernel would load");
//     command.runs([](const Options& options) { …; return 0; });
//   }
//
// An option of one command alone lives in that command: add it to command.app() (include
// CLI/CLI.hpp there) with a variable that the lambda given to runs() shares. Its type_name decides
// what a shell offers: FOLDER, FILE, PACKAGE, words to choose from ("auto|cpu"), or nothing for any
// other.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/host.hpp"
#include "kiln/request.hpp"
#include "store/cache.hpp"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace kiln::cli {

/// "geglu-mlp@1". Version 0: none was given.
struct Spec {
  std::string name;
  int version = 0;

  std::string text() const;
};

/// Throws kUsage, saying which half is wrong, for text that is not NAME or NAME@VERSION.
Spec parse_spec(const std::string& text);

struct Options {
  std::vector<Spec> specs;
  Request request;           ///< everything but the version, which comes from each spec
  std::optional<Host> host;  ///< another machine's facts
  bool json = false;
  bool quiet = false;
  bool dev = false;  ///< install, path: what one compiles against, in place of the library

  std::string command;  ///< "kiln cache gc"

  /// Throws kUsage, with the versions that there are, if neither the spec nor a lock file has one.
  Request request_for(const Spec& spec) const;
  /// The cache to read, clean or repair. Throws kNotFound for a --cache that is not there: it was
  /// mistyped. The default one may still have to be made.
  Cache existing_cache() const;
  /// What to do about what is damaged.
  void tell_repair() const;
  /// The packages that are named; where none is, all that the lock file has.
  std::vector<Spec> specs_or_locked() const;
};

/// The words of a command line as they were typed, and what they mean.
struct CommandLine {
  std::vector<std::string> packages;
  std::string device = "auto";
  bool locked = false;
  bool frozen = false;
  std::vector<std::string> fallbacks;
  std::string host;
  Options options;
  std::function<int()> chosen;  ///< the command that was named; empty before the parse
};

/// One command while it is declared.
class Command {
 public:
  Command(CLI::App& app, CommandLine& line) : app_(app), line_(line) {}

  void takes_package();   ///< NAME@VERSION
  void takes_packages();  ///< any number of them
  void takes_cache();     ///< --cache, --json, --quiet
  void takes_json();      ///< --json alone
  void takes_registry();  ///< --registry, --from, --offline
  void takes_offline();   ///< --offline alone
  void takes_device();    ///< --device, --no-jit
  void takes_choice();    ///< both, --variant, --deny, --fallback, …
  void takes_lock();      ///< --lock, --locked, --frozen
  void takes_host();      ///< --host
  void takes_dev();       ///< --dev

  /// One line under "Examples:" of --help: the words after the command, and what they do.
  void example(const std::string& words, const std::string& meaning);

  void runs(std::function<int(const Options&)> run);

  CLI::App& app() { return app_; }

 private:
  CLI::App& app_;
  CommandLine& line_;
};

/// What asks a command to stop: see cancel.cpp. Called once, by the main thread, when one begins.
std::stop_token stop_on_signals();

/// "geglu-mlp@1" of each variant in the default cache; none of what is damaged.
std::vector<std::string> installed_packages();

/// The variants of the last NAME@VERSION among the words, as the default cache knows them without a
/// request; none where there is no such word or the cache does not know it.
std::vector<std::string> known_variants(const std::vector<std::string>& words);

/// One line for each fact of a machine.
void print_host(const Host& host);

/// Installs the packages that are named (or locked) and prints each.
int install_all(const Options& options);

void install(Command& command);    ///< fetches, verifies and unpacks; loads nothing
void resolve(Command& command);    ///< which variant would be taken, and why; kNoVariant if none
void add(Command& command);        ///< a kernel into kiln.lock, the newest version by default
void remove(Command& command);     ///< and out of it; kLock where it is not there
void update(Command& command);     ///< moves kiln.lock to the newest versions, or variants
void outdated(Command& command);   ///< what is newer than kiln.lock, or than what is installed
void search(Command& command);     ///< the packages of a registry
void uninstall(Command& command);  ///< out of the cache; kLock, kCache for what something holds
void login(Command& command);      ///< how to log in to a registry, and which login there is
void lock(Command& command);       ///< writes kiln.lock, or says what would change; kLock
void bundle_create(Command& command);   ///< kernels into one file
void bundle_install(Command& command);  ///< and out of it
void trust_add(Command& command);       ///< whose metadata vouches for a registry's versions
void trust_list(Command& command);
void trust_require(Command& command);  ///< whose signatures must be there, over that
void trust_remove(Command& command);
void list(Command& command);          ///< what is in the cache
void path(Command& command);          ///< the file get_kernel would load, hashed; kNotFound
void cache_dir(Command& command);     ///< where the cache is
void cache_verify(Command& command);  ///< hashes what is installed; kIntegrity if anything differs
void cache_gc(Command& command);      ///< removes from the cache what nothing holds
void cache_repair(Command& command);  ///< removes what is damaged and fetches it again
void info(Command& command);          ///< versions, ops and variants of a package
void host(Command& command);          ///< this machine's facts, for --host elsewhere
void doctor(Command& command);        ///< this machine, what it would get, and what to fix
void completions(Command& command);   ///< the script that makes a shell complete all of this

}  // namespace kiln::cli
