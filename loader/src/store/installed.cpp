// SPDX-License-Identifier: Apache-2.0
#include "store/installed.hpp"

#include <utility>

#include "base/number.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"

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
  if (!stands(found.folder, &fail_cache)) return std::nullopt;
  found.library = found.folder / found.config.library;
  for (const ArchiveFile& file : found.config.files) found.bytes += file.size;
  return found;
}

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
    const std::string subject = "index of " + label(ref.name, ref.version);
    try {
      const std::optional<std::string> bytes = cache.read_document(ref.index, subject);
      if (!bytes) continue;
      const Index index = parse_index(*bytes, subject);
      for (const Variant& variant : index.variants) {
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

}  // namespace kiln
