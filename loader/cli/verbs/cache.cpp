// SPDX-License-Identifier: Apache-2.0
//
// The commands around the cache itself: dir, verify, repair, gc.
#include "store/cache.hpp"

#include <memory>

#include "documents/json.hpp"
#include "install/install.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "store/gc.hpp"
#include "store/repair.hpp"

namespace kiln::cli {
namespace {

int run_dir(const Options& options) {
  const Cache cache(options.request.cache);
  print_json("cache-dir", {{"cache", cache.root().string()}});
  print_path(cache.root());
  return 0;
}

int run_verify(const Options& options) {
  const Cache cache = options.existing_cache();
  std::vector<Spec> specs = options.specs;
  if (specs.empty()) specs.emplace_back();
  Json documents = Json::array();
  std::size_t damaged = 0;
  for (const Spec& spec : specs) {
    for (const CheckedFile& checked : verify_installed(cache, spec.name, spec.version)) {
      const bool intact = checked.problem.empty();
      documents.push_back({{"subject", checked.subject},
                           {"file", checked.file.string()},
                           {"intact", intact},
                           {"problem", checked.problem}});
      if (intact) continue;
      ++damaged;
      print("damaged  %s: %s %s\n", checked.subject.c_str(), checked.file.c_str(),
            checked.problem.c_str());
    }
  }
  print_json("verify", {{"files", documents}, {"damaged", damaged}});
  print("%zu files, %zu damaged, in %s\n", documents.size(), damaged, cache.root().c_str());
  if (damaged == 0) return 0;
  options.tell_repair();
  return static_cast<int>(ErrorCode::kIntegrity);
}

int run_repair(const Options& options) {
  const Request& request = options.request;
  const Cache cache = options.existing_cache();
  Settings settings = load_settings();
  settings.offline = settings.offline || request.offline;
  Json documents = Json::array();
  int code = 0;
  for (const CheckedFile& each :
       repair(cache, settings, {settings.limits, request.on_event, request.stop})) {
    if (each.failed && code == 0) code = static_cast<int>(*each.failed);
    documents.push_back({{"subject", each.subject},
                         {"file", each.file.string()},
                         {"problem", each.problem},
                         {"done", each.done},
                         {"whole", !each.failed}});
    print("%s: %s\n  found: %s\n  %s\n", each.subject.c_str(), each.file.c_str(),
          each.problem.c_str(), each.done.c_str());
  }
  print_json("repair", {{"cache", cache.root().string()}, {"repaired", documents}});
  if (code == 0) print("%s is whole\n", cache.root().c_str());
  return code;
}

int run_gc(const Options& options, GcOptions what) {
  const Cache cache = options.existing_cache();
  what.on_wait = [quiet = options.quiet] {
    if (!quiet) tell("waiting for an install to end\n");
  };
  Json documents = Json::array();
  std::uint64_t bytes = 0;
  for (const Removed& each : collect_garbage(cache, what)) {
    bytes += each.bytes;
    documents.push_back({{"what", each.what}, {"path", each.path.string()}, {"bytes", each.bytes}});
    print("%s  %s  %llu bytes\n", each.what.c_str(), each.path.c_str(),
          static_cast<unsigned long long>(each.bytes));
  }
  print_json("gc", {{"cache", cache.root().string()},
                    {"dry_run", what.dry_run},
                    {"bytes", bytes},
                    {"removed", documents}});
  print("%s %zu, %llu bytes, in %s\n", what.dry_run ? "would remove" : "removed", documents.size(),
        static_cast<unsigned long long>(bytes), cache.root().c_str());
  return 0;
}

}  // namespace

void cache_dir(KernelCommand& command) {
  command.takes_cache();
  command.example("", "where kernels are kept");
  command.runs(run_dir);
}

void cache_verify(KernelCommand& command) {
  command.takes_packages();
  command.takes_cache();
  command.example("", "every file of the cache");
  command.example("geglu-mlp@1", "the files of one version");
  command.runs(run_verify);
}

void cache_repair(KernelCommand& command) {
  command.takes_offline();
  command.takes_cache();
  command.example("", "remove what is damaged, fetch it again");
  command.runs(run_repair);
}

void cache_gc(KernelCommand& command) {
  auto what = std::make_shared<GcOptions>();
  command.flag("--dry-run", what->dry_run, "Say what would go, remove nothing");
  command.flag("--unlocked", what->unlocked,
               "Also versions that no lock file names and no running process has loaded");
  command.flag("--layers", what->layers,
               "Also the archives of what is unpacked; a bundle or a repair fetches them again");
  command.flag("--partial", what->partial, "Also downloads that were cut less than a day ago");
  command.takes_cache();
  command.example("", "what killed installs and older versions left");
  command.example("--unlocked --dry-run", "what a project's CI no longer needs");
  command.runs([what](const Options& options) { return run_gc(options, *what); });
}

}  // namespace kiln::cli
