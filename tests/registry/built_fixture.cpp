// SPDX-License-Identifier: Apache-2.0
#include "built_fixture.hpp"
#include "documents/json.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "documents/manifest.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

la_ssize_t append(archive*, void* out, const void* data, size_t size) {
  static_cast<std::string*>(out)->append(static_cast<const char*>(data), size);
  return static_cast<la_ssize_t>(size);
}

void check(int result, archive* handle) {
  if (result != ARCHIVE_OK) throw std::runtime_error(archive_error_string(handle));
}

/// One more zstd frame around bytes.
std::string compress(const std::string& bytes) {
  std::string out;
  archive* handle = archive_write_new();
  check(archive_write_set_format_raw(handle), handle);
  check(archive_write_add_filter_zstd(handle), handle);
  archive_write_set_bytes_in_last_block(handle, 1);
  check(archive_write_open(handle, &out, nullptr, &append, nullptr), handle);
  archive_entry* entry = archive_entry_new();
  archive_entry_set_filetype(entry, AE_IFREG);
  check(archive_write_header(handle, entry), handle);
  archive_write_data(handle, bytes.data(), bytes.size());
  archive_entry_free(entry);
  archive_write_free(handle);
  return out;
}

void write_entry(archive* handle, const TarEntry& file) {
  archive_entry* entry = archive_entry_new();
  archive_entry_set_pathname(entry, file.path.c_str());
  archive_entry_set_filetype(entry, file.type);
  archive_entry_set_perm(entry, 0644);
  archive_entry_set_mtime(entry, 0, 0);
  if (file.hard_link) {
    archive_entry_set_hardlink(entry, file.link.c_str());
  } else if (file.type == AE_IFLNK) {
    archive_entry_set_symlink(entry, file.link.c_str());
  } else {
    archive_entry_set_size(entry, static_cast<la_int64_t>(file.bytes.size()));
  }
  check(archive_write_header(handle, entry), handle);
  if (!file.hard_link) archive_write_data(handle, file.bytes.data(), file.bytes.size());
  archive_entry_free(entry);
}

Descriptor describe(std::string_view media_type, const std::string& bytes) {
  return {std::string(media_type), Digest::of(bytes), bytes.size()};
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "kiln-registry-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string make_layer(const std::vector<TarEntry>& entries, int filters) {
  std::string out;
  archive* handle = archive_write_new();
  check(archive_write_set_format_pax_restricted(handle), handle);
  if (filters > 0) check(archive_write_add_filter_zstd(handle), handle);
  archive_write_set_bytes_in_last_block(handle, 1);
  check(archive_write_open(handle, &out, nullptr, &append, nullptr), handle);
  for (const TarEntry& entry : entries) write_entry(handle, entry);
  archive_write_free(handle);
  for (int i = 1; i < filters; ++i) out = compress(out);
  return out;
}

std::vector<TarEntry> Built::entries() const {
  return {{"LICENSE", "Apache-2.0\n"}, {library_path(), library}, {"package.json", schema}};
}

Config Built::config() const {
  Config config;
  config.name = name;
  config.version = version;
  config.variant = id;
  config.requires_.min_loader = min_loader;
  config.needs = needs;
  for (const TarEntry& entry : entries()) {
    config.files.push_back({entry.path, Digest::of(entry.bytes), entry.bytes.size()});
  }
  if (!header.empty()) {
    config.dev_files = {{"include/x.hpp", Digest::of(header), header.size()}};
  }
  config.library = library_path();
  config.symbol = "kiln_package_v1";
  config.build_id = "0123456789abcdef";
  config.build = build;
  return config;
}

Built cuda(const std::string& toolkit, const std::string& code) {
  Built built;
  built.id = "cu" + toolkit + "-" + code + "-x86_64";
  built.needs.cpu = {Arch::kX86_64, 1};
  built.needs.glibc = {2, 17};
  built.needs.toolkit = parse_version(toolkit);
  built.needs.min_driver = Version{built.needs.toolkit.value().major, 0};
  built.needs.device_code = {parse_device_code(code).value()};
  built.library += " " + built.id;
  return built;
}

Built cpu(const std::string& level) {
  Built built;
  built.id = "cpu-" + level;
  built.needs.cpu = parse_cpu_level(level).value();
  built.needs.glibc = {2, 17};
  built.library += " " + built.id;
  return built;
}

fs::path write_built(const fs::path& parent, const Built& built, const Tamper& tamper) {
  std::string layer = make_layer(built.entries());
  if (tamper.layer) tamper.layer(layer);
  Config config = built.config();
  if (tamper.config) tamper.config(config);
  const std::string config_bytes = serialize_config(config);

  VariantManifest manifest{describe(kMediaTypeConfig, config_bytes),
                           describe(kMediaTypeLayer, layer), 0};
  for (const ArchiveFile& file : config.files) manifest.unpacked_size += file.size;
  std::string dev;
  if (!built.header.empty()) {
    dev = make_layer({{"include/x.hpp", built.header}});
    if (tamper.dev) tamper.dev(dev);
    manifest.dev = describe(kMediaTypeLayer, dev);
    for (const ArchiveFile& file : config.dev_files) manifest.dev_unpacked_size += file.size;
  }
  if (tamper.manifest) tamper.manifest(manifest);
  const std::string manifest_bytes = serialize_manifest(manifest, built.name + ".tar.zst");

  Variant variant{.manifest = describe(kMediaTypeManifest, manifest_bytes),
                  .id = built.id,
                  .requires_ = config.requires_,
                  .needs = built.needs,
                  .tested = "untested"};
  if (tamper.variant) tamper.variant(variant);
  Json descriptor = to_json(variant.manifest);
  const bool arm = variant.needs.cpu.arch == Arch::kAarch64;
  descriptor["platform"] = {{"os", "linux"}, {"architecture", arm ? "arm64" : "amd64"}};
  descriptor["annotations"] = variant_annotations(variant);

  const fs::path folder = parent / built.id;
  fs::create_directories(folder);
  write_text(folder / "layer.tar.zst", layer);
  if (!dev.empty()) write_text(folder / "dev.tar.zst", dev);
  write_text(folder / "config.json", config_bytes);
  write_text(folder / "manifest.json", manifest_bytes);
  write_text(folder / "descriptor.json", dump_json(descriptor));
  return folder;
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_text(const fs::path& path, const std::string& text) {
  fs::remove(path);  // published blobs are read-only
  std::ofstream(path, std::ios::binary) << text;
}

std::string tree_hash(const fs::path& folder) {
  if (!fs::exists(folder)) return "";
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::string all;
  for (const fs::path& path : paths) {
    all += path.string() + "\n";
    if (fs::is_regular_file(path)) all += Digest::of(read_text(path)).str() + "\n";
  }
  return Digest::of(all).str();
}

fs::path write_record(const fs::path& path, const std::string& gpu, const Built& built, int cases,
                      int failed) {
  const Json result = {{"variant", built.id},
                       {"library", Digest::of(built.library).str()},
                       {"cases", cases},
                       {"failed", failed},
                       {"worst", {{"float32", 1e-7}}}};
  write_text(path, dump_json({{"schema", "kiln.record/1"},
                              {"hardware", gpu},
                              {"driver", "580.159.04"},
                              {"cuda", "13.0"},
                              {"date", "2026-11-21"},
                              {"commit", "0123456"},
                              {"results", Json::array({result})}}));
  return path;
}

}  // namespace kiln::test
