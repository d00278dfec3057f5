// SPDX-License-Identifier: Apache-2.0
//
// kiln outdated: what a registry has beyond kiln.lock, or, where there is none, beyond the cache.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/number.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "install/catalog.hpp"
#include "install/install.hpp"
#include "install/lock.hpp"
#include "install/parallel.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/locking.hpp"
#include "loader/cli/verbs/verbs.hpp"

namespace kiln::cli {
namespace {

/// A kernel as this project, or this cache, has it, and what its registry has.
struct Standing {
  std::string name;
  std::string registry;
  int version = 0;
  std::set<std::string> variants;  ///< of that version

  int newest = 0;                          ///< 0: every version was taken back
  std::optional<std::string> yanked = {};  ///< why this one was
  std::vector<std::string> added = {};     ///< variants of this version that are new
  std::optional<ErrorCode> failed = {};    ///< why the registry's state is not known
  std::string problem = {};

  bool is_damaged() const { return failed.has_value() && registry.empty(); }
  bool is_outdated() const { return newest > version || yanked || !added.empty(); }
};

std::vector<Standing> locked_kernels(const std::filesystem::path& file) {
  std::vector<Standing> kernels;
  for (const auto& [name, kernel] : read_lockfile(file)) {
    Standing one{name, kernel.registry, kernel.version, {}};
    for (const auto& each : kernel.variants) one.variants.insert(each.first);
    kernels.push_back(std::move(one));
  }
  return kernels;
}

/// Of each package and registry the newest version that the cache has.
std::vector<Standing> cached_kernels(const Options& options) {
  const Cache cache = options.existing_cache();
  const FileLock used = cache.use();
  std::map<std::pair<std::string, std::string>, Ref> newest;
  std::vector<Standing> kernels;
  const auto note_damaged = [&](const std::filesystem::path& path, const Error& error) {
    Standing one{
        path.parent_path().filename().string(), {}, parse_version_number(path.stem().string()), {}};
    one.failed = error.code();
    one.problem = error.what() +
                  std::string(". Run 'kiln cache repair', then install it again with --refresh");
    kernels.push_back(std::move(one));
  };
  for (const Ref& ref : cache.refs(note_damaged)) {  // ascending by version
    newest.insert_or_assign({ref.name, ref.registry}, ref);
  }
  for (const auto& [key, ref] : newest) {
    Standing one{ref.name, ref.registry, ref.version, {}};
    const std::string what = "index of " + label(ref.name, ref.version);
    if (const auto bytes = cache.read_document(ref.index, what)) {
      for (const Variant& each : parse_index(*bytes, what).variants) one.variants.insert(each.id);
    }
    kernels.push_back(std::move(one));
  }
  return kernels;
}

void ask_registry(Standing& kernel, Request request) {
  request.version = kernel.version;
  request.registry = kernel.registry;
  const std::vector<PublishedVersion> versions = Catalog(kernel.name, request).published();
  kernel.newest = newest_of(versions);
  const auto now = std::ranges::find(versions, kernel.version, &PublishedVersion::version);
  if (now != versions.end()) kernel.yanked = now->yanked;
  if (kernel.yanked) return;
  Install install(kernel.name, request, {.hold_to_lock = false});
  for (const Variant& each : install.find_newest_index().index.variants) {
    if (!kernel.variants.contains(each.id)) kernel.added.push_back(each.id);
  }
}

Json to_json(const Standing& kernel) {
  return {{"name", kernel.name},
          {"registry", kernel.registry},
          {"version", kernel.version},
          {"newest", kernel.newest == 0 ? Json() : Json(kernel.newest)},
          {"yanked", kernel.yanked ? Json(*kernel.yanked) : Json()},
          {"new_variants", kernel.added},
          {"outdated", kernel.is_outdated()},
          {"problem", kernel.failed ? Json(kernel.problem) : Json()}};
}

std::string note_of(const Standing& kernel) {
  std::vector<std::string> notes;
  if (kernel.yanked) notes.push_back("taken back: " + quote(*kernel.yanked));
  if (!kernel.added.empty()) {
    notes.push_back(std::to_string(kernel.added.size()) + " new variant" +
                    (kernel.added.size() == 1 ? "" : "s") + " of " +
                    std::to_string(kernel.version) + ": " + join(kernel.added));
  }
  if (kernel.failed) notes.push_back("not known: " + kernel.problem);
  return join(notes, "; ");
}

int run_outdated(const std::string& lock, const Options& options) {
  std::filesystem::path file = lock.empty() ? Project().lock : lock;
  if (lock.empty() && !stands(file, &fail_file)) file = load_settings().lock;
  std::vector<Standing> kernels = file.empty() ? cached_kernels(options) : locked_kernels(file);
  const std::string where = file.empty() ? options.existing_cache().root().string() : file.string();
  for (const Spec& spec : options.specs) {
    if (std::ranges::find(kernels, spec.name, &Standing::name) != kernels.end()) continue;
    throw Error(ErrorCode::kNotFound,
                "outdated " + spec.text() + ": " + where + " has no such kernel; " +
                    (kernels.empty() ? "it has none"
                                     : "name one of " + join(kernels, ", ", &Standing::name)));
  }
  if (!options.specs.empty()) {
    std::erase_if(kernels, [&](const Standing& each) {
      return std::ranges::find(options.specs, each.name, &Spec::name) == options.specs.end();
    });
  }
  options.tell_offline();
  const Observer on_event = one_at_a_time(options.request.on_event);
  in_parallel(kernels.size(), kDownloadsAtOnce, options.request.stop,
              [&](std::size_t i, const std::stop_token& stop) {
                if (kernels[i].is_damaged()) return;  // of nobody knows which registry
                Request request = options.request;
                request.on_event = on_event;
                request.stop = stop;
                try {
                  ask_registry(kernels[i], request);
                } catch (const Error& error) {
                  if (error.code() == ErrorCode::kCancelled) throw;
                  kernels[i].failed = error.code();
                  kernels[i].problem = error.what();
                }
              });
  Json documents = Json::array();
  std::size_t column = 0;
  for (const Standing& each : kernels) column = std::max(column, each.name.size());
  bool any = false;
  int code = 0;
  for (const Standing& each : kernels) {
    documents.push_back(to_json(each));
    any = any || each.is_outdated();
    if (each.failed && code == 0) code = static_cast<int>(*each.failed);
    if (!each.is_outdated() && !each.failed) continue;
    const std::string newest = each.failed        ? "?"
                               : each.newest == 0 ? "none"
                                                  : std::to_string(each.newest);
    print("%-*s  %d -> %s  %s\n", static_cast<int>(column), each.name.c_str(), each.version,
          newest.c_str(), note_of(each).c_str());
  }
  print_json("outdated", {{"of", where}, {"outdated", any}, {"kernels", documents}});
  if (options.json) return code;
  if (kernels.empty()) {
    tell("%s has no kernel\n", where.c_str());
  } else if (any) {
    tell("kiln: %s\n",
         file.empty() ? "'kiln install NAME@VERSION' fetches a newer version"
                      : ("'kiln update" + lock_option(file) + "' moves the lock file").c_str());
  } else if (code == 0) {
    tell("%s has the newest of all %zu\n", where.c_str(), kernels.size());
  }
  return code;
}

}  // namespace

void outdated(KernelCommand& command) {
  command.takes_packages();
  command.takes_offline();
  command.takes_cache();
  const auto lock = std::make_shared<std::string>();
  command.option("--lock", *lock, "FILE", "The lock file; default kiln.lock, else $KILN_LOCK");
  command.example("", "kiln.lock's kernels; without one, what is installed");
  command.example("geglu-mlp", "this one");
  command.runs([lock](const Options& options) { return run_outdated(*lock, options); });
}

}  // namespace kiln::cli
