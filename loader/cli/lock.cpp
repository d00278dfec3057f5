// SPDX-License-Identifier: Apache-2.0
//
// kiln lock: writes kiln.lock from packages that are named, from a project's kiln.json, or anew for
// what it has; or says what would change in it.
#include "install/lock.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/posix.hpp"
#include "commands.hpp"
#include "documents/json.hpp"
#include "documents/requirements.hpp"
#include "output.hpp"

namespace kiln::cli {
namespace {

namespace fs = std::filesystem;

struct Locking {
  std::string file = "kiln.lock";
  std::string requirements;
  bool check = false;
  bool force = false;
};

Requirements read_requirements(const fs::path& file) {
  const NamedFile read = read_named_file(file, kMaxDocumentBytes, Pipes::kRead);
  if (!read.problem.empty()) {
    throw Error(ErrorCode::kUsage, "read requirements " + file.string() + ": " + read.problem +
                                       ". Name a kiln.json that states the project's kernels, or "
                                       "packages: kiln lock NAME@VERSION");
  }
  return parse_requirements(read.text, "requirements " + file.string());
}

/// What is to be in the lock file: each kernel and its version. Kernels that are named join those
/// it has; requirements are all there is.
struct Wanted {
  std::map<std::string, int> kernels;
  std::string registry;
  bool keep_others = false;
};

Wanted wanted_kernels(const Locking& locking, const Options& options, const Lockfile& before) {
  Wanted wanted;
  if (!options.specs.empty()) {
    if (!locking.requirements.empty()) {
      throw Error(ErrorCode::kUsage,
                  "lock: packages and --requirements are given, expected one of them");
    }
    wanted.keep_others = true;
    for (const Spec& spec : options.specs) {
      if (spec.version == 0) {
        throw Error(ErrorCode::kUsage, "lock " + spec.name + ": expected a version, as in " +
                                           spec.name + "@1; 'kiln info " + spec.name +
                                           "' lists them");
      }
      const auto [place, added] = wanted.kernels.emplace(spec.name, spec.version);
      if (!added && place->second != spec.version) {
        throw Error(ErrorCode::kUsage, "lock " + spec.name + ": versions " +
                                           std::to_string(place->second) + " and " +
                                           std::to_string(spec.version) +
                                           " are asked for; a lock file has one of each kernel");
      }
    }
  } else if (!locking.requirements.empty() || fs::exists("kiln.json")) {
    const Requirements requirements =
        read_requirements(locking.requirements.empty() ? "kiln.json" : locking.requirements);
    wanted.kernels = requirements.kernels;
    wanted.registry = requirements.registry;
  } else {
    for (const auto& [name, kernel] : before) wanted.kernels.emplace(name, kernel.version);
    if (wanted.kernels.empty()) {
      throw Error(ErrorCode::kUsage,
                  "lock: nothing to lock. Name packages (kiln lock geglu-mlp@1), or state them in "
                  "kiln.json");
    }
  }
  return wanted;
}

/// The registry of a kernel: the command line's, the requirements', $KILN_REGISTRY, the one that it
/// is locked from already, else the machine's default.
std::string registry_of(const Options& options, const Wanted& wanted, const Lockfile& before,
                        const std::string& name) {
  if (!options.request.registry.empty()) return options.request.registry;
  if (!wanted.registry.empty()) return wanted.registry;
  if (std::string named = load_settings().registry; !named.empty()) return named;
  const auto locked = before.find(name);
  return locked == before.end() ? "" : locked->second.registry;
}

Lockfile make_lockfile(const Locking& locking, const Options& options, const Lockfile& before) {
  const Wanted wanted = wanted_kernels(locking, options, before);
  Lockfile after;
  if (wanted.keep_others) after = before;
  for (const auto& [name, version] : wanted.kernels) {
    Request request = options.request;
    request.version = version;
    request.registry = registry_of(options, wanted, before, name);
    std::vector<std::string> unread;
    LockedKernel kernel = lock_kernel(name, request, unread);
    const auto old = before.find(name);
    if (old != before.end() && old->second.version == version &&
        old->second.registry == kernel.registry) {
      check_only_grown(name, old->second, kernel);
    }
    for (const std::string& id : unread) {
      tell("kiln: %s@%d %s needs a newer kiln and is not locked\n", name.c_str(), version,
           id.c_str());
    }
    after[name] = std::move(kernel);
  }
  return after;
}

int run_lock(const Locking& locking, const Options& options) {
  const fs::path file = locking.file;
  LockfileEdit edit;
  edit.change = [&](const Lockfile& before) { return make_lockfile(locking, options, before); };
  edit.replace = locking.force;
  edit.write = !locking.check;
  edit.stop = options.request.stop;
  edit.on_wait = [&] {
    if (!options.quiet) tell("waiting for another process that changes %s\n", file.c_str());
  };
  const auto [before, after, changed] = update_lockfile(file, edit);
  const std::vector<std::string> changes = differences(before, after);
  Json kernels = Json::object();
  for (const auto& [name, kernel] : after) {
    kernels[name] = {{"version", kernel.version}, {"variants", kernel.variants.size()}};
  }
  print_json("lock", {{"file", file.string()},
                      {"changed", changed},
                      {"differences", changes},
                      {"kernels", kernels}});
  for (const std::string& line : changes) print("%s\n", line.c_str());
  if (!changed) print("%s holds\n", file.c_str());
  if (!changed || !locking.check) return 0;
  if (!options.json) {
    tell("kiln: %s would change as above. Run 'kiln lock' and commit it\n", file.c_str());
  }
  return static_cast<int>(ErrorCode::kLock);
}

}  // namespace

void lock(Command& command) {
  command.takes_packages();
  command.takes_registry();
  command.takes_cache();
  const auto locking = std::make_shared<Locking>();
  command.app()
      .add_option("--lock", locking->file, "The lock file; default kiln.lock")
      ->type_name("FILE");
  command.app()
      .add_option("--requirements", locking->requirements,
                  "A project's kernels; default kiln.json where there is one")
      ->type_name("FILE");
  command.app().add_flag("--check", locking->check,
                         "Write nothing; exit 8 if the lock file would change");
  command.app().add_flag("--force", locking->force,
                         "Do not read the old lock file, which may be damaged: replace it");
  command.example("geglu-mlp@1", "adds it to kiln.lock, all variants");
  command.example("", "what kiln.json states, or what is locked, anew");
  command.example("--check", "for CI: does kiln.lock still hold?");
  command.runs([locking](const Options& options) { return run_lock(*locking, options); });
}

}  // namespace kiln::cli
