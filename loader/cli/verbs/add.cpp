// SPDX-License-Identifier: Apache-2.0
//
// The verbs of a project's kernels: add, remove, update. They change kiln.lock, and kiln.json where
// the project has one.
#include <algorithm>
#include <memory>
#include <optional>

#include "base/join.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "install/catalog.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/cool_down.hpp"
#include "loader/cli/verbs/locking.hpp"
#include "loader/cli/verbs/verbs.hpp"

namespace kiln::cli {
namespace {

std::string stated_registry(const Project& project) {
  const std::optional<Requirements> stated = requirements_of(project);
  return stated ? stated->registry : "";
}

std::string cpp_line(const std::string& name, int version, const std::string& lock) {
  return "kiln::get_kernel(\"" + name + "\", {.version = " + std::to_string(version) +
         ", .lock = " + quote(lock) + "})";
}

int run_add(const Project& project, const Options& options) {
  std::map<std::string, int> added;
  CoolDown cool_down(project, options);
  const std::string stated = stated_registry(project);
  const LockfileUpdate update = change_lockfile(project, options, [&](const Lockfile& before) {
    Lockfile after = before;
    for (const Spec& spec : options.specs) {
      const std::string registry = registry_of(options, stated, before, spec.name);
      const int version =
          spec.version != 0 ? spec.version : cool_down.newest_version(spec.name, registry);
      after[spec.name] = lock_version(spec.name, version, registry, options, before);
      if (spec.version != 0) cool_down.note_named(spec.name, version, registry);
      added[spec.name] = version;
    }
    change_requirements(project, added);
    return after;
  });
  Json documents = Json::array();
  for (const auto& [name, version] : added) {
    const LockedKernel& kernel = update.after.at(name);
    documents.push_back({{"name", name},
                         {"version", version},
                         {"registry", kernel.registry},
                         {"variants", kernel.variants.size()},
                         {"cpp", cpp_line(name, version, project.lock)}});
  }
  const int code = print_change(project, update, "add", options,
                                {{"added", documents}, {"young", cool_down.young()}});
  if (code != 0) return code;
  for (const auto& [name, version] : added) {
    const LockedKernel& kernel = update.after.at(name);
    print("%s is in %s: %zu variants, from %s\n", label(name, version).c_str(),
          project.lock.c_str(), kernel.variants.size(), kernel.registry.c_str());
    print("  C++      kiln::Kernel kernel = %s;\n", cpp_line(name, version, project.lock).c_str());
    print("  CMake    kiln_require(%s VERSION %d)\n", name.c_str(), version);
  }
  print("  install  kiln install%s\n", locked_option(project.lock).c_str());
  return 0;
}

/// Throws kLock for a package, or a version of it, that the lock file does not have.
void check_is_locked(const Project& project, const Lockfile& lock, const Spec& spec) {
  const auto found = lock.find(spec.name);
  const bool other =
      found != lock.end() && spec.version != 0 && spec.version != found->second.version;
  if (found != lock.end() && !other) return;
  const auto text = [](const auto& kernel) { return label(kernel.first, kernel.second.version); };
  throw Error(ErrorCode::kLock,
              "find " + spec.text() + " in " + project.lock + ": it is not there; it has " +
                  (lock.empty() ? "none" : join(lock, ", ", text)) + ". Name one of these");
}

int run_remove(const Project& project, const Options& options) {
  const LockfileUpdate update = change_lockfile(project, options, [&](const Lockfile& before) {
    Lockfile after = before;
    std::map<std::string, int> gone;
    for (const Spec& spec : options.specs) {
      check_is_locked(project, before, spec);
      after.erase(spec.name);
      gone[spec.name] = 0;
    }
    change_requirements(project, gone);
    return after;
  });
  const int code = print_change(project, update, "remove", options, Json::object());
  if (code == 0) {
    print("  what is installed stays: 'kiln uninstall %s' takes it out of the cache\n",
          join(options.specs, " ", &Spec::text).c_str());
  }
  return code;
}

/// The version to move to. The locked one stays where it is the newest that counts and was not
/// taken back.
int version_to_take(const std::string& name, int locked, const std::string& registry,
                    CoolDown& cool_down, Json& yanked) {
  const std::vector<PublishedVersion> versions = cool_down.obtainable(name, registry);
  const int newest = cool_down.newest_of(name, versions, locked);
  const auto now = std::ranges::find(versions, locked, &PublishedVersion::version);
  if (now == versions.end() || !now->yanked) return std::max(newest, locked);
  yanked.push_back({{"name", name}, {"version", locked}, {"reason", *now->yanked}});
  print("%s was taken back by its publisher: %s\n", label(name, locked).c_str(),
        quote(*now->yanked).c_str());
  return newest == 0 ? locked : newest;
}

int run_update(const Project& project, bool same_version, const Options& options) {
  Json yanked = Json::array();
  CoolDown cool_down(project, options);
  const std::string stated = stated_registry(project);
  const LockfileUpdate update = change_lockfile(project, options, [&](const Lockfile& before) {
    for (const Spec& spec : options.specs) check_is_locked(project, before, spec);
    if (before.empty()) {
      throw Error(ErrorCode::kLock,
                  "update: " + project.lock + " has no kernel. Add one: 'kiln add NAME'");
    }
    Lockfile after = before;
    std::map<std::string, int> moved;
    for (const auto& [name, kernel] : before) {
      const auto is_it = [&name = name](const Spec& spec) { return spec.name == name; };
      if (!options.specs.empty() && !std::ranges::any_of(options.specs, is_it)) continue;
      const std::string registry = registry_of(options, stated, before, name);
      const int version = same_version
                              ? kernel.version
                              : version_to_take(name, kernel.version, registry, cool_down, yanked);
      after[name] = lock_version(name, version, registry, options, before);
      if (version != kernel.version) moved[name] = version;
    }
    change_requirements(project, moved);
    return after;
  });
  return print_change(project, update, "update", options,
                      {{"yanked", yanked}, {"young", cool_down.young()}});
}

std::shared_ptr<Project> takes_kernels(KernelCommand& command) {
  command.takes_registry();
  command.takes_cache();
  auto project = std::make_shared<Project>();
  takes_project(command, *project);
  return project;
}

}  // namespace

void add(KernelCommand& command) {
  command.takes_named_packages();
  const auto project = takes_kernels(command);
  takes_cool_down(command, *project);
  command.example("geglu-mlp", "the newest version, into kiln.lock");
  command.example("geglu-mlp@1 swiglu-mlp", "this version of one, the newest of the other");
  command.runs([project](const Options& options) { return run_add(*project, options); });
}

void remove(KernelCommand& command) {
  command.takes_named_packages();
  const auto project = takes_kernels(command);
  command.example("geglu-mlp", "out of kiln.lock; the cache keeps it");
  command.runs([project](const Options& options) { return run_remove(*project, options); });
}

void update(KernelCommand& command) {
  command.takes_packages();
  const auto project = takes_kernels(command);
  takes_cool_down(command, *project);
  const auto same_version = std::make_shared<bool>(false);
  command.flag("--same-version", *same_version,
               "Take only the variants that were added to the locked versions");
  command.example("", "every kernel of kiln.lock to its newest version");
  command.example("geglu-mlp --same-version", "the variants that were added to its version");
  command.example("--newest-after 0", "take a fix that was published today");
  command.example("--check", "say what would change; exit 8 if anything would");
  command.runs([project, same_version](const Options& options) {
    return run_update(*project, *same_version, options);
  });
}

}  // namespace kiln::cli
