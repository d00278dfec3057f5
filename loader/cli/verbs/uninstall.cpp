// SPDX-License-Identifier: Apache-2.0
//
// kiln uninstall: kernels out of the cache. What a project's lock file or a running process holds
// stays.
#include <algorithm>
#include <memory>
#include <vector>

#include "base/join.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "settings/settings.hpp"
#include "store/cache.hpp"
#include "store/gc.hpp"
#include "store/registry.hpp"

namespace kiln::cli {
namespace {

Json to_json(const Ref& ref) {
  return {{"name", ref.name}, {"version", ref.version}, {"registry", ref.registry}};
}

[[noreturn]] void fail_not_there(const Cache& cache, const std::vector<Spec>& missing) {
  throw Error(ErrorCode::kNotFound, "uninstall " + join(missing, " ", &Spec::text) +
                                        ": not installed in " + cache.root().string() +
                                        "; nothing was removed. 'kiln list' says what is");
}

/// What holds it, and how it lets go.
std::string describe(const KeptVersion& kept) {
  const std::string name = label(kept.ref.name, kept.ref.version);
  if (!kept.holder.starts_with('/')) {
    return name + " stays: " + kept.holder + " has loaded it. End it, and run this again";
  }
  return name + " stays: " + kept.holder + " has it. Run 'kiln remove " + kept.ref.name +
         "' in that project, and run this again";
}

int run_uninstall(bool dry_run, const std::string& registry, const Options& options) {
  const Cache cache = options.existing_cache();
  const std::string only = registry.empty() ? "" : canonical_registry(registry, load_settings());
  const auto is_wanted = [&](const Ref& ref) {
    return (only.empty() || ref.registry == only) &&
           std::ranges::any_of(options.specs,
                               [&](const Spec& spec) { return spec.names(ref.name, ref.version); });
  };
  std::vector<Spec> missing = options.specs;
  const auto fail_damaged = [&](const std::filesystem::path& path, const Error& error) {
    const std::string name = path.parent_path().filename().string();
    const int version = parse_version_number(path.stem().string());
    for (const Spec& spec : options.specs) {
      if (!spec.names(name, version)) continue;
      if (!only.empty() && path != cache.ref_path(only, name, version)) continue;
      throw Error(error.code(), "uninstall " + spec.text() + ": " + error.what() +
                                    "; nothing was removed. Run 'kiln cache repair' first");
    }
  };
  for (const Ref& ref : cache.refs(fail_damaged)) {
    if (!is_wanted(ref)) continue;
    std::erase_if(missing, [&](const Spec& spec) { return spec.names(ref.name, ref.version); });
  }
  if (!missing.empty()) fail_not_there(cache, missing);
  GcOptions how;
  how.dry_run = dry_run;
  how.on_wait = [quiet = options.quiet] {
    if (!quiet) tell("waiting for an install to end\n");
  };
  const Uninstalled done = uninstall(cache, is_wanted, how);
  std::uint64_t bytes = 0;
  for (const Removed& each : done.removed) bytes += each.bytes;
  Json gone = Json::array();
  for (const Ref& ref : done.versions) {
    gone.push_back(to_json(ref));
    print("%s %s, from %s\n", dry_run ? "would uninstall" : "uninstalled",
          label(ref.name, ref.version).c_str(), ref.registry.c_str());
  }
  Json kept = Json::array();
  for (const KeptVersion& each : done.kept) {
    kept.push_back(to_json(each.ref));
    kept.back()["holder"] = each.holder;
  }
  print_json("uninstall", {{"cache", cache.root().string()},
                           {"dry_run", dry_run},
                           {"bytes", bytes},
                           {"uninstalled", gone},
                           {"kept", kept}});
  print("%llu bytes %s in %s\n", static_cast<unsigned long long>(bytes),
        dry_run ? "would be freed" : "freed", cache.root().c_str());
  if (done.kept.empty()) return 0;
  for (const KeptVersion& each : done.kept) tell("kiln: %s\n", describe(each).c_str());
  const bool locked = std::ranges::any_of(
      done.kept, [](const KeptVersion& each) { return each.holder.starts_with('/'); });
  return static_cast<int>(locked ? ErrorCode::kLock : ErrorCode::kCache);
}

}  // namespace

void uninstall(KernelCommand& command) {
  command.takes_named_packages();
  const auto dry_run = std::make_shared<bool>(false);
  const auto registry = std::make_shared<std::string>();
  command.flag("--dry-run", *dry_run, "Say what would go, remove nothing");
  command.option("--registry", *registry, "FOLDER|URL", "Only what came from this registry");
  command.takes_cache();
  command.example("geglu-mlp@1", "this version, all its variants");
  command.example("geglu-mlp --dry-run", "how much all versions would free");
  command.runs([=](const Options& options) { return run_uninstall(*dry_run, *registry, options); });
}

}  // namespace kiln::cli
