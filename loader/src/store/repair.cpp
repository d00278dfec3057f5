// SPDX-License-Identifier: Apache-2.0
#include "store/repair.hpp"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "settings/settings.hpp"
#include "store/copy.hpp"
#include "store/places.hpp"
#include "store/unpack.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

/// Where what is damaged comes from again.
class Sources {
 public:
  Sources(const Settings& settings, const Patience& patience)
      : settings_(settings), patience_(patience) {}

  void fetch(const Ref& ref, const Cache& cache, const Descriptor& descriptor,
             const std::string& subject) {
    if (settings_.offline) {
      throw Error(ErrorCode::kOffline, "fetch from " + ref.registry +
                                           ": offline nothing is fetched. Run 'kiln cache repair' "
                                           "again where there is a network");
    }
    std::unique_ptr<Repository>& from = repositories_[{ref.registry, ref.name}];
    if (!from) from = open_repository(ref.registry, ref.name, settings_, patience_, traffic_);
    copy(*from, cache, descriptor, subject, patience_);
  }

 private:
  const Settings& settings_;
  const Patience& patience_;
  Traffic traffic_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Repository>> repositories_;
};

/// Everything behind the refs, one answer a file. A file that two refs share is looked at for both,
/// and told of once.
class Walk {
 public:
  /// Without sources nothing is changed.
  Walk(const Cache& cache, Sources* sources) : cache_(cache), sources_(sources) {}

  /// What came of making something whole; nothing without sources.
  struct Outcome {
    std::string done;
    std::optional<ErrorCode> failed;
  };

  void add(std::string subject, fs::path file, std::string problem = {}, Outcome outcome = {}) {
    if (!seen_.insert(file).second) return;
    checked_.push_back({std::move(subject), std::move(file), std::move(problem),
                        std::move(outcome.done), outcome.failed});
  }

  void check_version(const Ref& ref) {
    const std::string subject = label(ref.name, ref.version);
    guarded(subject, cache_.blob_path(ref.index.digest), [&] {
      if (!check_blob(ref, subject, ref.index)) return;
      const Index index = parse_index(document(ref.index), "index " + subject);
      for (const Variant& variant : index.variants) check_variant(ref, index, variant);
    });
  }

  /// What stands in a place of the cache and is not what Kiln puts there, before what the refs need
  /// is looked for: a link in the place of a folder leads elsewhere.
  void check_folders() { check_places("folder", survey(cache_.root()).folders); }

  /// And what the refs do not lead to.
  void check_rest() {
    check_roots();
    check_unnamed();
    check_places("file", survey(cache_.root()).files);
  }

  std::vector<CheckedFile> take() { return std::move(checked_); }

 private:
  void check_places(const std::string& subject, const std::vector<Misplaced>& places) {
    for (const auto& [path, problem] : places) {
      if (!seen_.contains(path)) remove_damaged(subject, path, problem, "removed");
    }
  }

  void check_roots() {
    guarded("roots", cache_.root() / "roots", [&] {
      cache_.kept_lock_files([&](const fs::path& path, const Error& error) {
        remove_damaged("lock file's entry", path, error.what(),
                       "removed: run 'kiln install --locked' in the project that it was of");
      });
    });
  }

  /// Blobs that no ref names, of an install that was cut short or of an older index: nothing says
  /// where they came from.
  void check_unnamed() {
    guarded("blobs", cache_.root() / "blobs", [&] {
      for (const Digest& digest : cache_.blobs()) {
        const fs::path path = cache_.blob_path(digest);
        if (seen_.contains(path)) continue;
        const std::string problem = cache_.check_blob(digest);
        if (problem.empty()) {
          add("blob that no version names", path);
        } else {
          remove_damaged("blob that no version names", path, problem, "removed");
        }
      }
    });
  }

  void remove_damaged(const std::string& subject, const fs::path& path, const std::string& problem,
                      const std::string& done) {
    add(subject, path, problem, mend(done, "not removed: ", [&] { remove_whole(path); }));
  }

  /// What may not be read is not damaged: nothing is known of it.
  template <class Step>
  void guarded(const std::string& subject, const fs::path& path, const Step& step) {
    try {
      step();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCache || error.code() == ErrorCode::kCancelled) throw;
      checked_.push_back({subject, path, error.what(), "not repaired", error.code()});
    }
  }

  Outcome mend(const std::string& done, const std::string& not_done,
               const std::function<void()>& step) const {
    if (sources_ == nullptr) return {};
    try {
      step();
      return {done, {}};
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled) throw;
      return {not_done + error.what(), error.code()};
    }
  }

  void check_variant(const Ref& ref, const Index& index, const Variant& variant) {
    if (!cache_.has_blob(variant.manifest.digest)) return;  // not installed
    const std::string subject = label(ref.name, ref.version) + " " + variant.id;
    guarded(subject, cache_.blob_path(variant.manifest.digest), [&] {
      if (!check_blob(ref, subject, variant.manifest)) return;
      const VariantManifest manifest =
          parse_manifest(document(variant.manifest), "manifest of " + subject);
      const fs::path folder = cache_.unpacked_path(manifest.config.digest);
      if (!cache_.has_blob(manifest.config.digest) && !stands(folder, &fail_cache))
        return;  // was cut short
      if (!check_blob(ref, subject, manifest.config)) return;
      const Config config = parse_config(document(manifest.config), "config of " + subject);
      check_agreement(index, variant, config);
      // A layer that is missing is not needed: its files are unpacked.
      if (cache_.has_blob(manifest.layer.digest)) check_blob(ref, subject, manifest.layer);
      if (stands(folder, &fail_cache)) {
        check_files(ref, subject,
                    {config, manifest.config.digest, manifest.config.digest, manifest.layer,
                     manifest.unpacked_size});
      }
      if (!manifest.has_dev()) return;
      if (cache_.has_blob(manifest.dev.digest)) check_blob(ref, subject, manifest.dev);
      if (stands(cache_.unpacked_path(manifest.dev.digest), &fail_cache)) {
        check_files(ref, subject,
                    {config.dev_part(), manifest.dev.digest, manifest.config.digest, manifest.dev,
                     manifest.dev_unpacked_size});
      }
    });
  }

  /// One layer, and the folder that its files are in.
  struct Unpacked {
    Config config;
    Digest folder;
    Digest lock;  // not the layer's, which its download takes
    Descriptor layer;
    std::uint64_t bytes = 0;
  };

  void check_files(const Ref& ref, const std::string& subject, const Unpacked& what) {
    const Config& config = what.config;
    const fs::path folder = cache_.unpacked_path(what.folder);
    std::vector<DamagedFile> damaged = check_unpacked(folder, config);
    Outcome outcome;
    if (!damaged.empty()) {
      outcome = mend("unpacked again", "removed, and not unpacked again: ", [&] {
        const FileLock held = cache_.lock(what.lock);
        drop_unpacked(folder);
        if (!cache_.has_blob(what.layer.digest)) {
          sources_->fetch(ref, cache_, what.layer, "layer of " + subject);
        }
        unpack_layer(cache_.blob_path(what.layer.digest), config, what.bytes, folder, subject);
      });
    }
    for (DamagedFile& each : damaged) {
      add(subject, std::move(each.file), std::move(each.problem), outcome);
    }
    for (const ArchiveFile& file : config.files) add(subject, folder / file.path);
  }

  /// A document that check_blob() found whole.
  std::string document(const Descriptor& descriptor) const {
    const fs::path path = cache_.blob_path(descriptor.digest);
    if (auto bytes = cache_.read_document(descriptor, path.string())) return *std::move(bytes);
    throw Error(ErrorCode::kIntegrity, "read " + path.string() + ": somebody removed it meanwhile");
  }

  /// Whether a blob is whole, or is made so: a damaged one is removed, a missing one fetched.
  bool check_blob(const Ref& ref, const std::string& subject, const Descriptor& descriptor) {
    const fs::path path = cache_.blob_path(descriptor.digest);
    std::string problem = "is missing";
    try {
      if (cache_.verify_blob(descriptor, subject)) {
        add(subject, path);
        return true;
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIntegrity) throw;
      problem = error.what();
    }
    const Outcome outcome =
        mend("fetched again from " + ref.registry, "removed, and not fetched again: ", [&] {
          cache_.drop_blob(descriptor.digest);
          sources_->fetch(ref, cache_, descriptor, subject);
        });
    add(subject, path, problem, outcome);
    if (outcome.failed) seen_.erase(path);  // another ref's registry may have it
    return sources_ != nullptr && !outcome.failed;
  }

  const Cache& cache_;
  Sources* sources_;
  std::vector<CheckedFile> checked_;
  std::set<fs::path> seen_;
};

}  // namespace

std::vector<CheckedFile> verify_installed(const Cache& cache, std::string_view name, int version) {
  if (!stands(cache.root(), &fail_cache)) {
    throw Error(ErrorCode::kNotFound, "verify " + cache.root().string() +
                                          ": there is no such folder. Check KILN_CACHE or --cache; "
                                          "the first install makes it");
  }
  const FileLock used = cache.use();  // gc removes nothing meanwhile
  Walk walk(cache, nullptr);
  if (name.empty()) walk.check_folders();
  bool found = name.empty();
  const auto damaged = [&](const fs::path& path, const Error& error) {
    found = true;
    walk.add("ref", path, error.what());
  };
  for (const Ref& ref : cache.refs(damaged)) {
    if (!name.empty() && ref.name != name) continue;
    if (version != 0 && ref.version != version) continue;
    found = true;
    walk.check_version(ref);
  }
  if (!found) {
    throw Error(ErrorCode::kNotFound,
                "verify " + (version == 0 ? std::string(name) : label(name, version)) +
                    ": it is not in " + cache.root().string() +
                    ". 'kiln list' says what is; 'kiln install NAME@VERSION' brings more");
  }
  if (name.empty()) walk.check_rest();
  return walk.take();
}

std::vector<CheckedFile> repair(const Cache& cache, const Settings& settings,
                                const Patience& patience) {
  if (!is_marked(cache.root())) return {};
  const FileLock used = cache.use_to_write();
  Sources sources(settings, patience);
  Walk walk(cache, &sources);
  walk.check_folders();
  const auto damaged = [&](const fs::path& path, const Error& error) {
    if (error.code() == ErrorCode::kUpgrade) throw Error(error);
    remove_whole(path);
    // refs/<registry>/<package>/<version>.json: what it was is known from where it was.
    walk.add("ref", path, error.what(),
             {"removed: run 'kiln install " + path.parent_path().filename().string() + "@" +
                  path.stem().string() + "' to have it again",
              {}});
  };
  for (const Ref& ref : cache.refs(damaged)) walk.check_version(ref);
  walk.check_rest();
  std::vector<CheckedFile> checked = walk.take();
  std::erase_if(checked, [](const CheckedFile& each) { return each.problem.empty(); });
  return checked;
}

}  // namespace kiln
