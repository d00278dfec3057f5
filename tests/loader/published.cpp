// SPDX-License-Identifier: Apache-2.0
#include "published.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <doctest/doctest.h>

#include <atomic>
#include <memory>

#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "loader_paths.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

#if defined(__aarch64__)
constexpr CpuLevel kLowest{Arch::kAarch64, 1};
#else
constexpr CpuLevel kLowest{Arch::kX86_64, 1};
#endif

struct ArchiveFree {
  void operator()(archive* handle) const { archive_write_free(handle); }
};
struct EntryFree {
  void operator()(archive_entry* entry) const { archive_entry_free(entry); }
};

la_ssize_t append(archive*, void* self, const void* data, size_t size) {
  static_cast<std::string*>(self)->append(static_cast<const char*>(data), size);
  return static_cast<la_ssize_t>(size);
}

void write_entry(archive* handle, const Entry& each) {
  const std::unique_ptr<archive_entry, EntryFree> entry(archive_entry_new());
  archive_entry_set_pathname(entry.get(), each.path.c_str());
  archive_entry_set_perm(entry.get(), 0644);
  if (each.type == 0) {
    archive_entry_set_filetype(entry.get(), AE_IFREG);
    archive_entry_set_hardlink(entry.get(), each.target.c_str());
  } else {
    archive_entry_set_filetype(entry.get(), each.type);
    if (each.type == AE_IFLNK) archive_entry_set_symlink(entry.get(), each.target.c_str());
  }
  const bool has_data = each.type == AE_IFREG;
  archive_entry_set_size(
      entry.get(),
      each.size >= 0 ? each.size : (has_data ? static_cast<la_int64_t>(each.content.size()) : 0));
  if (each.sparse) {
    const auto half = static_cast<la_int64_t>(each.content.size() / 2);
    archive_entry_sparse_add_entry(entry.get(), 0, half);
  }
  REQUIRE(archive_write_header(handle, entry.get()) == ARCHIVE_OK);
  if (has_data) archive_write_data(handle, each.content.data(), each.content.size());
}

}  // namespace

std::string make_tar(const std::vector<Entry>& entries) {
  std::string bytes;
  const std::unique_ptr<archive, ArchiveFree> handle(archive_write_new());
  archive_write_set_format_pax_restricted(handle.get());
  archive_write_open(handle.get(), &bytes, nullptr, &append, nullptr);
  for (const Entry& entry : entries) write_entry(handle.get(), entry);
  archive_write_close(handle.get());
  return bytes;
}

std::string make_zstd(const std::string& content) {
  std::string bytes;
  const std::unique_ptr<archive, ArchiveFree> handle(archive_write_new());
  archive_write_set_format_raw(handle.get());
  archive_write_add_filter_zstd(handle.get());
  archive_write_set_bytes_in_last_block(handle.get(), 1);
  archive_write_open(handle.get(), &bytes, nullptr, &append, nullptr);
  const std::unique_ptr<archive_entry, EntryFree> entry(archive_entry_new());
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  REQUIRE(archive_write_header(handle.get(), entry.get()) == ARCHIVE_OK);
  archive_write_data(handle.get(), content.data(), content.size());
  archive_write_close(handle.get());
  return bytes;
}

std::string sample_library(const std::string& kind) {
  static std::atomic<int> count = 0;
  const fs::path path = fs::path(paths::kSamples) / ("libsample_" + kind + ".so");
  return read_file(path) + "\nthis is copy " + std::to_string(++count);
}

Draft cpu_draft(const std::string& library, const std::string& name, int version,
                const std::string& id) {
  Draft draft;
  draft.variant.id = id;
  draft.variant.needs.cpu = kLowest;
  draft.variant.needs.glibc = {2, 17};
  draft.variant.tested = "untested";
  draft.config.name = name;
  draft.config.version = version;
  draft.config.library = "lib/libsample.so";
  draft.config.symbol = "kiln_package_v1";
  draft.config.build_id = "sample-build";
  draft.entries = {{"LICENSE", "Apache-2.0\n"}, {"lib/libsample.so", library}};
  return draft;
}

Draft gpu_draft(const std::string& library, const std::string& name, int version) {
  Draft draft = cpu_draft(library, name, version, "cu12.4-sm_90");
  draft.variant.needs.toolkit = Version{12, 4};
  draft.variant.needs.min_driver = Version{12, 0};
  draft.variant.needs.device_code = {{DeviceCode::Kind::kSass, {9, 0}, 0}};
  return draft;
}

void Published::add(Draft& draft) {
  Config& config = draft.config;
  const std::string& name = config.name;
  config.variant = draft.variant.id;
  config.needs = draft.variant.needs;
  config.requires_ = draft.variant.requires_;
  std::uint64_t total = 0;
  if (config.files.empty()) {
    for (const Entry& entry : draft.entries) {
      config.files.push_back({entry.path, Digest::of(entry.content), entry.content.size()});
    }
  }
  for (const ArchiveFile& file : config.files) total += file.size;
  std::uint64_t dev_total = 0;
  if (config.dev_files.empty()) {
    for (const Entry& entry : draft.dev) {
      config.dev_files.push_back({entry.path, Digest::of(entry.content), entry.content.size()});
    }
  }
  for (const ArchiveFile& file : config.dev_files) dev_total += file.size;
  if (draft.unpacked_size == 0) draft.unpacked_size = total;
  if (draft.layer.empty()) draft.layer = make_zstd(make_tar(draft.entries));
  if (draft.config_bytes.empty()) draft.config_bytes = serialize_config(config);
  if (draft.manifest_bytes.empty()) {
    VariantManifest manifest{put(name, draft.config_bytes, kMediaTypeConfig),
                             put(name, draft.layer, kMediaTypeLayer), draft.unpacked_size};
    if (!draft.dev.empty()) {
      manifest.dev = put(name, make_zstd(make_tar(draft.dev)), kMediaTypeLayer);
      manifest.dev_unpacked_size = dev_total;
    }
    draft.manifest_bytes = serialize_manifest(manifest, draft.variant.id + ".tar.zst");
  }
  draft.variant.manifest = put(name, draft.manifest_bytes, kMediaTypeManifest);
}

Descriptor Published::publish(std::vector<Draft> drafts) {
  Index index;
  index.name = drafts.at(0).config.name;
  index.version = drafts.at(0).config.version;
  for (Draft& draft : drafts) {
    add(draft);
    index.variants.push_back(draft.variant);
  }
  drafts_ = std::move(drafts);
  return publish_index(index);
}

Descriptor Published::publish_index(const Index& index,
                                    const std::function<void(std::string&)>& change) {
  std::string bytes = serialize_index(index);
  if (change) change(bytes);
  const Descriptor descriptor = put(index.name, bytes, kMediaTypeIndex);
  write_tag(index.name, std::to_string(index.version), descriptor);
  return descriptor;
}

Descriptor Published::put(const std::string& name, const std::string& bytes,
                          std::string_view media_type) {
  const Digest digest = Digest::of(bytes);
  write_file(blob(name, digest), bytes);
  return {std::string(media_type), digest, bytes.size()};
}

fs::path Published::blob(const std::string& name, const Digest& digest) const {
  return root_ / name / "blobs" / "sha256" / digest.hex();
}

VariantManifest Published::manifest() const {
  return parse_manifest(drafts_.at(0).manifest_bytes, "manifest");
}

void Published::write_tag(const std::string& name, const std::string& tag,
                          const Descriptor& descriptor) {
  constexpr const char* kRefName = "org.opencontainers.image.ref.name";
  const fs::path path = root_ / name / "index.json";
  Json layout = {
      {"schemaVersion", 2}, {"mediaType", kMediaTypeIndex}, {"manifests", Json::array()}};
  if (fs::exists(path)) layout = Json::parse(read_file(path));
  Json kept = Json::array();
  for (const Json& entry : layout["manifests"]) {
    if (entry["annotations"][kRefName] != tag) kept.push_back(entry);
  }
  Json added = to_json(descriptor);
  added["annotations"] = {{kRefName, tag}};
  kept.push_back(added);
  layout["manifests"] = kept;
  write_file(path, layout.dump());
  write_file(root_ / name / "oci-layout", R"({"imageLayoutVersion":"1.0.0"})");
}

}  // namespace kiln::test
