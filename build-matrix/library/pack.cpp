// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/library/pack.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <kiln/abi.h>

#include <algorithm>
#include <memory>

#include "base/digest.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

la_ssize_t append_bytes(archive*, void* target, const void* bytes, std::size_t count) {
  static_cast<std::string*>(target)->append(static_cast<const char*>(bytes), count);
  return static_cast<la_ssize_t>(count);
}

Descriptor describe(std::string_view media_type, const std::string& bytes) {
  return {.media_type = std::string(media_type), .digest = Digest::of(bytes), .size = bytes.size()};
}

/// What an archive of these holds, and the bytes of all of them.
std::uint64_t list(const std::vector<ArchiveEntry>& entries, std::vector<ArchiveFile>& files) {
  std::uint64_t bytes = 0;
  for (const ArchiveEntry& entry : entries) {
    files.push_back(
        {.path = entry.path, .digest = Digest::of(entry.bytes), .size = entry.bytes.size()});
    bytes += entry.bytes.size();
  }
  return bytes;
}

Needs needs_of(const Recipe& recipe, const Facts& facts) {
  return {.cpu = recipe.cpu,
          .glibc = facts.glibc,
          .toolkit = recipe.toolkit,
          .min_driver = recipe.min_driver,
          .device_code = recipe.targets,
          .libraries = recipe.libraries};
}

}  // namespace

std::string make_archive(std::vector<ArchiveEntry> entries) {
  std::ranges::sort(entries, {}, &ArchiveEntry::path);
  std::string bytes;
  const std::unique_ptr<archive, int (*)(archive*)> out(archive_write_new(), archive_write_free);
  const auto must = [&](int result) {
    if (result != ARCHIVE_OK) {
      throw Error(ErrorCode::kBuild,
                  std::string("write an archive: ") + archive_error_string(out.get()));
    }
  };
  must(archive_write_add_filter_zstd(out.get()));
  must(archive_write_set_options(out.get(), "zstd:compression-level=19"));
  must(archive_write_set_format_ustar(out.get()));
  must(archive_write_set_bytes_in_last_block(out.get(), 1));
  must(archive_write_open(out.get(), &bytes, nullptr, append_bytes, nullptr));
  for (const ArchiveEntry& entry : entries) {
    const std::unique_ptr<archive_entry, void (*)(archive_entry*)> header(archive_entry_new(),
                                                                          archive_entry_free);
    archive_entry_set_pathname(header.get(), entry.path.c_str());
    archive_entry_set_filetype(header.get(), AE_IFREG);
    archive_entry_set_perm(header.get(), static_cast<mode_t>(entry.mode));
    archive_entry_set_size(header.get(), static_cast<la_int64_t>(entry.bytes.size()));
    archive_entry_set_mtime(header.get(), 0, 0);
    archive_entry_set_uid(header.get(), 0);
    archive_entry_set_gid(header.get(), 0);
    must(archive_write_header(out.get(), header.get()));
    const la_ssize_t written =
        archive_write_data(out.get(), entry.bytes.data(), entry.bytes.size());
    if (written != static_cast<la_ssize_t>(entry.bytes.size())) must(ARCHIVE_FATAL);
  }
  must(archive_write_close(out.get()));
  return bytes;
}

Packed pack(const PackInput& input) {
  const Recipe& recipe = input.recipe;
  const NeededLoader requires_{.min_loader = recipe.min_loader, .abi = KILN_ABI_MAJOR};
  const Needs needs = needs_of(recipe, input.facts);
  const std::vector<ArchiveEntry> entries = {
      {.path = "LICENSE", .bytes = input.license},
      {.path = "lib/" + recipe.library(), .bytes = input.library, .mode = 0755},
      {.path = "package.json", .bytes = input.package_json}};

  Config config{.name = recipe.package,
                .version = recipe.version,
                .variant = recipe.variant,
                .requires_ = requires_,
                .needs = needs,
                .library = "lib/" + recipe.library(),
                .symbol = KILN_PACKAGE_SYMBOL,
                .build_id = recipe.build_id,
                .build = recipe.build};
  VariantManifest manifest;
  manifest.unpacked_size = list(entries, config.files);
  manifest.dev_unpacked_size = list(input.dev, config.dev_files);

  Packed packed;
  packed.layer = make_archive(entries);
  packed.config = serialize_config(config);
  manifest.config = describe(kMediaTypeConfig, packed.config);
  manifest.layer = describe(kMediaTypeLayer, packed.layer);
  if (!input.dev.empty()) {
    packed.dev = make_archive(input.dev);
    manifest.dev = describe(kMediaTypeLayer, packed.dev);
  }
  const std::string title =
      recipe.package + "-" + std::to_string(recipe.version) + "-" + recipe.variant + ".tar.zst";
  packed.manifest = serialize_manifest(manifest, title);
  packed.descriptor =
      dump_json(variant_descriptor({.manifest = describe(kMediaTypeManifest, packed.manifest),
                                    .id = recipe.variant,
                                    .requires_ = requires_,
                                    .needs = needs,
                                    .tested = "untested"}));
  return packed;
}

}  // namespace kiln::build
