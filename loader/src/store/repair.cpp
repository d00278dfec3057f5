// SPDX-License-Identifier: Apache-2.0
#include "store/repair.hpp"

#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "store/copy.hpp"
#include "store/unpack.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

class Repair {
 public:
  Repair(const Cache& cache, const Settings& settings, const Patience& patience)
      : cache_(cache), settings_(settings), patience_(patience) {}

  std::vector<Repaired> run() {
    repair_folders();
    const auto damaged = [&](const fs::path& path, const Error& error) {
      if (error.code() == ErrorCode::kUpgrade) throw Error(error);
      remove(path);
      // refs/<registry>/<package>/<version>.json: what it was is known from where it was.
      done_.push_back({"ref", path, error.what(),
                       "removed: run 'kiln install " + path.parent_path().filename().string() +
                           "@" + path.stem().string() + "' to have it again"});
    };
    for (const Ref& ref : cache_.refs(damaged)) repair_version(ref);
    repair_unnamed();
    return std::move(done_);
  }

 private:
  /// What the cache is made of must be folders: a link in their place leads elsewhere.
  void repair_folders() {
    for (const char* name :
         {"blobs", "blobs/sha256", "refs", "roots", "ingest", "unpacked", "locks"}) {
      const fs::path path = cache_.root() / name;
      std::error_code error;
      const fs::file_type type = fs::symlink_status(path, error).type();
      if (type == fs::file_type::not_found || type == fs::file_type::directory) continue;
      remove(path);
      done_.push_back({"folder", path, "is not a folder", "removed"});
    }
  }

  void repair_version(const Ref& ref) {
    try {
      const std::string subject = label(ref.name, ref.version);
      const std::string bytes = document(ref, subject, "index", ref.index);
      const Index index = parse_index(bytes, "index " + subject);
      for (const Variant& variant : index.variants) repair_variant(ref, index, variant);
    } catch (const Error& error) {
      fail(label(ref.name, ref.version), cache_.blob_path(ref.index.digest), error);
    }
  }

  void repair_variant(const Ref& ref, const Index& index, const Variant& variant) {
    if (!stands(cache_.blob_path(variant.manifest.digest))) return;  // not installed
    const std::string subject = label(ref.name, ref.version) + " " + variant.id;
    try {
      const VariantManifest manifest = parse_manifest(
          document(ref, subject, "manifest", variant.manifest), "manifest of " + subject);
      if (!stands(cache_.blob_path(manifest.config.digest)) &&
          !stands(cache_.unpacked_path(manifest.config.digest))) {
        return;  // an install that was cut short
      }
      const Config config =
          parse_config(document(ref, subject, "config", manifest.config), "config of " + subject);
      check_agreement(index, variant, config);
      const fs::path layer = cache_.blob_path(manifest.layer.digest);
      if (stands(layer)) blob(ref, subject, manifest.layer);
      repair_files(ref, subject, manifest, config);
    } catch (const Error& error) {
      fail(subject, cache_.blob_path(variant.manifest.digest), error);
    }
  }

  void repair_files(const Ref& ref, const std::string& subject, const VariantManifest& manifest,
                    const Config& config) {
    const fs::path folder = cache_.unpacked_path(manifest.config.digest);
    if (!stands(folder)) return;  // not unpacked
    std::vector<DamagedFile> damaged = check_unpacked(folder, config);
    if (damaged.empty()) return;
    const std::size_t first = done_.size();
    for (DamagedFile& each : damaged) {
      done_.push_back({subject, std::move(each.file), std::move(each.problem), "unpacked again"});
    }
    const FileLock held = cache_.lock(manifest.config.digest);
    drop_unpacked(folder);
    try {
      blob(ref, subject, manifest.layer);
      unpack_layer(cache_.blob_path(manifest.layer.digest), config, manifest.unpacked_size, folder,
                   subject);
    } catch (const Error& error) {
      for (std::size_t i = first; i < done_.size(); ++i) {
        done_[i].done = std::string("removed, and not unpacked again: ") + error.what();
        done_[i].failed = error.code();
      }
    }
  }

  /// A document, whole.
  std::string document(const Ref& ref, const std::string& subject, const std::string& what,
                       const Descriptor& descriptor) {
    blob(ref, subject + (what == "index" ? "" : " " + what), descriptor);
    return cache_.read_document(descriptor, what + " of " + subject).value();
  }

  /// Makes a blob whole: a damaged one is removed, a missing one fetched by its digest.
  void blob(const Ref& ref, const std::string& subject, const Descriptor& descriptor) {
    const fs::path path = cache_.blob_path(descriptor.digest);
    seen_.insert(path);
    std::string problem;
    try {
      if (cache_.read_blob(descriptor, subject, "")) return;
      problem = "is missing";
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIntegrity) throw;
      problem = error.what();
      cache_.drop_blob(descriptor.digest);
    }
    done_.push_back({subject, path, problem, "fetched again from " + ref.registry});
    const std::size_t at = done_.size() - 1;
    try {
      copy(repository(ref), cache_, descriptor, subject, patience_);
    } catch (const Error& error) {
      done_[at].done = std::string("removed, and not fetched again: ") + error.what();
      done_[at].failed = error.code();
      throw;
    }
  }

  /// Blobs that no ref names: nothing says where they came from.
  void repair_unnamed() {
    for (const Digest& digest : cache_.blobs()) {
      const fs::path path = cache_.blob_path(digest);
      if (seen_.contains(path)) continue;
      if (const std::string problem = cache_.check_blob(digest); !problem.empty()) {
        cache_.drop_blob(digest);
        done_.push_back({"blob that no version names", path, problem, "removed"});
      }
    }
  }

  const Repository& repository(const Ref& ref) {
    if (settings_.offline) {
      throw Error(ErrorCode::kOffline, "fetch from " + ref.registry +
                                           ": offline nothing is fetched. Run 'kiln cache repair' "
                                           "again where there is a network");
    }
    std::unique_ptr<Repository>& opened = repositories_[{ref.registry, ref.name}];
    if (!opened) opened = open_repository(ref.registry, ref.name, settings_, patience_, traffic_);
    return *opened;
  }

  static void remove(const fs::path& path) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) fail_cache("remove", path, error.value());
  }

  /// Adds why something is not whole, unless the last entry says it already.
  void fail(const std::string& subject, const fs::path& path, const Error& error) {
    if (error.code() == ErrorCode::kCancelled) throw Error(error);
    if (!done_.empty() && done_.back().failed == error.code()) return;
    done_.push_back({subject, path, error.what(), "not repaired", error.code()});
  }

  const Cache& cache_;
  const Settings& settings_;
  const Patience& patience_;
  Traffic traffic_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Repository>> repositories_;
  std::set<fs::path> seen_;
  std::vector<Repaired> done_;
};

}  // namespace

std::vector<Repaired> repair(const Cache& cache, const Settings& settings,
                             const Patience& patience) {
  if (!is_marked(cache.root())) return {};
  const FileLock used = cache.use_to_write();
  return Repair(cache, settings, patience).run();
}

}  // namespace kiln
