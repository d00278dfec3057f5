// SPDX-License-Identifier: Apache-2.0
//
// What the cache holds: install.hpp's list_installed and verify_installed. Both start at the refs;
// a variant is installed if everything from its manifest to its unpacked folder is there.
#include <limits>
#include <set>
#include <utility>

#include "base/number.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "store/installed.hpp"
#include "store/unpack.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

/// Reads one variant's documents; nothing if it is not installed. Throws for damage.
std::optional<InstalledVariant> read_variant(const Cache& cache, const Ref& ref,
                                             const Variant& variant) {
  const std::string subject = label(ref.name, ref.version) + " " + variant.id;
  const std::optional<std::string> manifest_bytes =
      cache.read_document(variant.manifest, "manifest of " + subject);
  if (!manifest_bytes) return std::nullopt;
  InstalledVariant found;
  found.ref = ref;
  found.variant = variant;
  found.manifest = parse_manifest(*manifest_bytes, "manifest of " + subject);
  const std::optional<std::string> config_bytes =
      cache.read_document(found.manifest.config, "config of " + subject);
  if (!config_bytes) return std::nullopt;
  found.config = parse_config(*config_bytes, "config of " + subject);
  found.folder = cache.unpacked_path(found.manifest.config.digest);
  if (!stands(found.folder)) return std::nullopt;
  found.library = found.folder / found.config.library;
  for (const ArchiveFile& file : found.config.files) found.bytes += file.size;
  return found;
}

std::optional<Index> read_cached_index(const Cache& cache, const Ref& ref) {
  const std::optional<std::string> bytes =
      cache.read_document(ref.index, "index of " + label(ref.name, ref.version));
  if (!bytes) return std::nullopt;
  return parse_index(*bytes, "index " + label(ref.name, ref.version));
}

/// Collects one answer a file; a file that two refs share is hashed once.
class Checker {
 public:
  explicit Checker(const Cache& cache) : cache_(cache) {}

  void add(std::string subject, fs::path file, std::string problem = {}) {
    if (!seen_.insert(file).second) return;
    checked_.push_back({std::move(subject), std::move(file), std::move(problem)});
  }

  void check_ref(const Ref& ref) {
    const fs::path path = cache_.blob_path(ref.index.digest);
    try {
      const std::optional<Index> index = read_cached_index(cache_, ref);
      add(label(ref.name, ref.version), path, index ? "" : "is missing");
      if (!index) return;
      for (const Variant& variant : index->variants) check_variant(ref, variant);
    } catch (const Error& error) {
      add(label(ref.name, ref.version), path, problem_of(error));
    }
  }

  /// Blobs that no ref names: of an install that was cut short, or of an older index.
  void check_unnamed() {
    try {
      for (const Digest& digest : cache_.blobs()) {
        const fs::path path = cache_.blob_path(digest);
        if (seen_.contains(path)) continue;
        add("blob that no version names", path, cache_.check_blob(digest));
      }
    } catch (const Error& error) {
      add("blobs", cache_.root() / "blobs", problem_of(error));
    }
  }

  std::vector<CheckedFile> take() { return std::move(checked_); }

 private:
  void check_variant(const Ref& ref, const Variant& variant) {
    const std::string subject = label(ref.name, ref.version) + " " + variant.id;
    fs::path path = cache_.blob_path(variant.manifest.digest);
    try {
      const std::optional<std::string> bytes =
          cache_.read_document(variant.manifest, "manifest of " + subject);
      if (!bytes) return;  // not installed
      const VariantManifest manifest = parse_manifest(*bytes, "manifest of " + subject);
      add(subject, path);
      path = cache_.blob_path(manifest.config.digest);
      const std::optional<std::string> config_bytes =
          cache_.read_document(manifest.config, "config of " + subject);
      if (!config_bytes) return;  // an install that was cut short
      const Config config = parse_config(*config_bytes, "config of " + subject);
      add(subject, path);
      check_layer(subject, manifest.layer);
      path = cache_.unpacked_path(manifest.config.digest);
      check_files(subject, path, config);
    } catch (const Error& error) {
      add(subject, path, problem_of(error));
    }
  }

  /// What may not be read is not damaged: nothing is known of it.
  static std::string problem_of(const Error& error) {
    if (error.code() == ErrorCode::kCache) throw Error(error);
    return error.what();
  }

  void check_layer(const std::string& subject, const Descriptor& layer) {
    const fs::path path = cache_.blob_path(layer.digest);
    try {
      // One that is missing is not needed: its files are unpacked.
      if (cache_.read_blob(layer, "layer of " + subject, "")) add(subject, path);
    } catch (const Error& error) {
      add(subject, path, problem_of(error));
    }
  }

  void check_files(const std::string& subject, const fs::path& folder, const Config& config) {
    if (!open_folder_inside(cache_.root(), folder.lexically_relative(cache_.root())).valid())
      return;
    for (DamagedFile& damaged : check_unpacked(folder, config)) {
      add(subject, std::move(damaged.file), std::move(damaged.problem));
    }
    for (const ArchiveFile& file : config.files) add(subject, folder / file.path);
  }

  const Cache& cache_;
  std::vector<CheckedFile> checked_;
  std::set<fs::path> seen_;
};

}  // namespace

std::vector<InstalledVariant> list_installed(const Cache& cache, const DamagedVersion& damaged) {
  std::vector<InstalledVariant> installed;
  const auto report = [&](const std::string& name, int version, const Error& error) {
    if (error.code() == ErrorCode::kCache) throw Error(error);
    if (damaged) damaged(name, version, error);
  };
  const auto damaged_ref = [&](const fs::path& path, const Error& error) {
    // refs/<registry>/<package>/<version>.json, or a folder on the way
    report(path.parent_path().filename().string(), parse_version_number(path.stem().string()),
           error);
  };
  for (const Ref& ref : cache.refs(damaged_ref)) {
    try {
      const std::optional<Index> index = read_cached_index(cache, ref);
      if (!index) continue;
      for (const Variant& variant : index->variants) {
        if (std::optional<InstalledVariant> found = read_variant(cache, ref, variant)) {
          installed.push_back(std::move(*found));
        }
      }
    } catch (const Error& error) {
      report(ref.name, ref.version, error);
    }
  }
  return installed;
}

std::vector<CheckedFile> verify_installed(const Cache& cache, std::string_view name, int version) {
  if (!stands(cache.root())) {
    throw Error(ErrorCode::kNotFound, "verify " + cache.root().string() +
                                          ": there is no such folder. Check KILN_CACHE or --cache; "
                                          "the first install makes it");
  }
  const FileLock used = cache.use();  // gc removes nothing meanwhile
  Checker checker(cache);
  bool found = name.empty();
  const auto damaged = [&](const fs::path& path, const Error& error) {
    found = true;
    checker.add("ref", path, error.what());
  };
  for (const Ref& ref : cache.refs(damaged)) {
    if (!name.empty() && ref.name != name) continue;
    if (version != 0 && ref.version != version) continue;
    found = true;
    checker.check_ref(ref);
  }
  if (!found) {
    throw Error(ErrorCode::kNotFound,
                "verify " + (version == 0 ? std::string(name) : label(name, version)) +
                    ": it is not in " + cache.root().string() +
                    ". 'kiln list' says what is; 'kiln install' brings more");
  }
  if (name.empty()) checker.check_unnamed();
  return checker.take();
}

}  // namespace kiln
