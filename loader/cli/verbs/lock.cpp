// SPDX-License-Identifier: Apache-2.0
//
// kiln lock: writes kiln.lock from packages that are named, from a project's kiln.json, or anew for
// what it has; or says what would change in it.
#include "install/lock.hpp"

#include <filesystem>
#include <memory>

#include "base/draft.hpp"
#include "base/posix.hpp"
#include "documents/descriptor.hpp"
#include "documents/json.hpp"
#include "documents/requirements.hpp"
#include "loader/cli/frame/cancel.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/cool_down.hpp"
#include "loader/cli/verbs/fleet.hpp"
#include "loader/cli/verbs/locking.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "settings/owners.hpp"
#include "settings/settings.hpp"

namespace kiln::cli {
namespace {

namespace fs = std::filesystem;

struct Locking {
  Project project;
  bool force = false;
  std::vector<fs::path> hosts;
};

std::string read_stated(const fs::path& file) {
  NamedFile read = read_named_file(file, kMaxDocumentBytes, Pipes::kRead);
  if (!read.problem.empty()) {
    throw Error(ErrorCode::kUsage, "read requirements " + file.string() + ": " + read.problem +
                                       ". Name a kiln.json that states the project's kernels, or "
                                       "packages: kiln lock NAME@VERSION");
  }
  if (const std::optional<Doubt> doubt = doubt_about_project_file(file)) {
    throw Error(ErrorCode::kUsage,
                "read requirements " + file.string() + ": " + doubt->why + ". " + doubt->next_step);
  }
  return std::move(read.text);
}

std::string subject_of(const fs::path& file) {
  return "requirements " + file.string();
}

/// Where the project states its kernels; empty: nowhere.
fs::path stated_in(const Project& project) {
  constexpr const char* kUsual = "kiln.json";
  if (!project.requirements.empty()) return project.requirements;
  return stands(kUsual, &fail_file) ? kUsual : "";
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
    if (!locking.project.requirements.empty()) {
      throw Error(ErrorCode::kUsage,
                  "lock: packages and --requirements are given, expected one of them");
    }
    wanted.keep_others = true;
    for (const Spec& spec : options.specs) {
      if (spec.version == 0) {
        throw Error(ErrorCode::kUsage, "lock " + spec.name + ": expected a version, as in " +
                                           spec.name + "@1; 'kiln add " + spec.name +
                                           "' takes the newest");
      }
      const auto [place, added] = wanted.kernels.emplace(spec.name, spec.version);
      if (!added && place->second != spec.version) {
        throw Error(ErrorCode::kUsage, "lock " + spec.name + ": versions " +
                                           std::to_string(place->second) + " and " +
                                           std::to_string(spec.version) +
                                           " are asked for; a lock file has one of each kernel");
      }
    }
  } else if (const std::optional<Requirements> stated = requirements_of(locking.project)) {
    wanted.kernels = stated->kernels;
    wanted.registry = stated->registry;
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

Lockfile make_lockfile(const Locking& locking, const Options& options, const Lockfile& before,
                       CoolDown& cool_down) {
  const Wanted wanted = wanted_kernels(locking, options, before);
  Lockfile after;
  if (wanted.keep_others) after = before;
  for (const auto& [name, version] : wanted.kernels) {
    const std::string registry = registry_of(options, wanted.registry, before, name);
    after[name] = lock_version(name, version, registry, options, before);
    const auto old = before.find(name);
    if (old == before.end() || old->second.version != version) {
      cool_down.note_named(name, version, registry);
    }
  }
  return after;
}

int run_lock(const Locking& locking, const Options& options) {
  CoolDown cool_down(locking.project, options);
  const LockfileUpdate update = change_lockfile(
      locking.project, options,
      [&](const Lockfile& before) { return make_lockfile(locking, options, before, cool_down); },
      locking.force);
  // The file as it is from now on: with --check that is as it was.
  Fleet fleet{nullptr, 0};
  if (!locking.hosts.empty() &&
      (stands(locking.project.lock, &fail_file) || !locking.project.check)) {
    fleet = check_fleet(locking.hosts, locking.project.lock, options);
  }
  Json more = {{"young", cool_down.young()}, {"hosts", std::move(fleet.machines)}};
  const int code = print_change(locking.project, update, "lock", options, std::move(more));
  return code != 0 ? code : fleet.code;
}

}  // namespace

void takes_project(Command& command, Project& project) {
  command.option("--lock", project.lock, "FILE", "The lock file; default kiln.lock");
  command.option("--requirements", project.requirements, "FILE",
                 "A project's kernels; default kiln.json where there is one");
  command.flag("--check", project.check, "Write nothing; exit 8 if the lock file would change");
}

std::optional<Requirements> requirements_of(const Project& project) {
  const fs::path file = stated_in(project);
  if (file.empty()) return std::nullopt;
  return parse_requirements(read_stated(file), subject_of(file));
}

std::string registry_of(const Options& options, const std::string& stated, const Lockfile& before,
                        const std::string& name) {
  if (!options.request.registry.empty()) return options.request.registry;
  if (!stated.empty()) return stated;
  if (std::string named = load_settings().registry; !named.empty()) return named;
  const auto locked = before.find(name);
  return locked == before.end() ? "" : locked->second.registry;
}

LockedKernel lock_version(const std::string& name, int version, const std::string& registry,
                          const Options& options, const Lockfile& before) {
  Request request = options.request;
  request.version = version;
  request.registry = registry;
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
  return kernel;
}

LockfileUpdate change_lockfile(const Project& project, const Options& options,
                               const std::function<Lockfile(const Lockfile&)>& change, bool force) {
  LockfileEdit edit;
  edit.change = change;
  edit.replace = force;
  edit.write = !project.check;
  if (const fs::path file = stated_in(project); !file.empty()) edit.beside = {file};
  edit.waiting = waiting_for_others(options.quiet, options.request.stop);
  return update_lockfile(project.lock, edit);
}

void change_requirements(const Project& project, const std::map<std::string, int>& versions) {
  const fs::path file = stated_in(project);
  if (project.check || file.empty()) return;
  const std::string before = read_stated(file);
  const std::string after = edit_requirements(before, subject_of(file), versions);
  if (after == before) return;
  replace_file(file, after, 0664);  // the user's to edit and to commit
}

int print_change(const Project& project, const LockfileUpdate& update, const std::string& kind,
                 const Options& options, Json more) {
  const std::vector<std::string> changes = differences(update.before, update.after);
  Json kernels = Json::object();
  for (const auto& [name, kernel] : update.after) {
    kernels[name] = {{"version", kernel.version}, {"variants", kernel.variants.size()}};
  }
  more.update({{"file", project.lock},
               {"changed", update.changed},
               {"differences", changes},
               {"kernels", kernels}});
  print_json(kind, std::move(more));
  for (const std::string& line : changes) print("%s\n", line.c_str());
  if (!update.changed) print("%s holds\n", project.lock.c_str());
  if (!update.changed || !project.check) return 0;
  if (!options.json) {
    tell("kiln: %s would change as above. Run 'kiln %s' without --check, and commit it\n",
         project.lock.c_str(), kind.c_str());
  }
  return static_cast<int>(ErrorCode::kLock);
}

void lock(KernelCommand& command) {
  command.takes_packages();
  command.takes_registry();
  command.takes_cache();
  const auto locking = std::make_shared<Locking>();
  takes_project(command, locking->project);
  takes_cool_down(command, locking->project);
  command.flag("--force", locking->force,
               "Do not read the old lock file, which may be damaged: replace it");
  command
      .option("--hosts", locking->hosts, "FILE",
              "What would the machines of these facts files (kiln host --json) get?")
      .many();
  command.takes_device();
  command.example("geglu-mlp@1", "adds it to kiln.lock, all variants");
  command.example("", "what kiln.json states, or what is locked, anew");
  command.example("--check", "for CI: does kiln.lock still hold?");
  command.example("--check --hosts hosts/*.json", "and does every machine get each kernel?");
  command.runs([locking](const Options& options) { return run_lock(*locking, options); });
}

}  // namespace kiln::cli
