// SPDX-License-Identifier: Apache-2.0
#include "install.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "kiln/error.hpp"
#include "select.hpp"
#include "unpack.hpp"
#include "verify.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

/// Passes a blob on to the cache and says how far it is.
class ReportingSink final : public BlobSink {
 public:
  ReportingSink(BlobSink& to, std::function<void(std::uint64_t)> report)
      : to_(to), report_(std::move(report)) {}

  std::uint64_t size() const override { return to_.size(); }
  void write(std::string_view bytes) override {
    to_.write(bytes);
    report_(to_.size());
  }
  void restart() override { to_.restart(); }
  void finish() override { to_.finish(); }

 private:
  BlobSink& to_;
  std::function<void(std::uint64_t)> report_;
};

std::string package_of(const Selecting& self) {
  return self.name + "@" + std::to_string(self.request.version);
}

/// A document of the cache. While refreshing, a damaged one is removed and counts as missing.
std::optional<std::string> cached(const Selecting& self, const Descriptor& descriptor,
                                  const std::string& what) {
  try {
    return self.cache.read_document(descriptor, what);
  } catch (const Error& error) {
    if (!self.request.refresh || error.code() != ErrorCode::kIntegrity) throw;
    self.cache.drop_blob(descriptor.digest);
    return std::nullopt;
  }
}

VariantManifest get_manifest(Selecting& self, const Variant& variant, const std::string& subject) {
  const std::string what = "manifest of " + subject;
  std::optional<std::string> bytes = cached(self, variant.manifest, what);
  if (!bytes) {
    Source& source = self.source.open(package_of(self), what);
    const Subject names{what, self.source.registry(), ""};
    self.cache.write_blob(variant.manifest, names, [&](BlobSink& sink) {
      self.report(Event::Stage::kManifest, subject, 0, variant.manifest.size);
      if (sink.size() > 0) sink.restart();
      sink.write(source.manifest(self.name, variant.manifest));
      self.report(Event::Stage::kManifest, subject, sink.size(), variant.manifest.size);
    });
    bytes = self.cache.read_document(variant.manifest, what);
  }
  return parse_manifest(bytes.value(), what);
}

Config get_config(Selecting& self, const Descriptor& descriptor, const std::string& subject) {
  const std::string what = "config of " + subject;
  if (descriptor.size > kMaxDocumentBytes) {
    throw Error(ErrorCode::kIntegrity, "read " + what + ": " + std::to_string(descriptor.size) +
                                           " bytes, expected at most " +
                                           std::to_string(kMaxDocumentBytes) + " for a document");
  }
  std::optional<std::string> bytes = cached(self, descriptor, what);
  if (!bytes) {
    Source& source = self.source.open(package_of(self), what);
    const Subject names{what, source.origin(self.name, descriptor),
                        "The registry is damaged: tell its publisher"};
    self.cache.write_blob(descriptor, names, [&](BlobSink& sink) {
      self.report(Event::Stage::kConfig, subject, 0, descriptor.size);
      source.blob(self.name, descriptor, sink);
      self.report(Event::Stage::kConfig, subject, sink.size(), descriptor.size);
    });
    bytes = self.cache.read_document(descriptor, what);
  }
  return parse_config(bytes.value(), what);
}

/// The layer in the cache, its bytes verified just now whether they were fetched or found.
fs::path get_layer(Selecting& self, const Descriptor& layer, const std::string& subject) {
  const std::string what = "layer of " + subject;
  try {
    const fs::path path = self.cache.blob_path(layer.digest);
    if (const FileDescriptor file = self.cache.open_blob(layer.digest); file.valid()) {
      StreamVerifier verifier(
          layer, {what, path.string(), "Run 'kiln install --refresh' to fetch it again"});
      read_pieces(file.get(), path, [&](std::string_view piece) { verifier.update(piece); });
      verifier.finish();
      return path;
    }
  } catch (const Error& error) {
    if (!self.request.refresh || error.code() != ErrorCode::kIntegrity) throw;
    self.cache.drop_blob(layer.digest);
  }
  Source& source = self.source.open(package_of(self), what);
  const Subject names{what, source.origin(self.name, layer),
                      "The registry is damaged: tell its publisher"};
  return self.cache.write_blob(layer, names, [&](BlobSink& sink) {
    self.report(Event::Stage::kLayer, subject, sink.size(), layer.size);
    ReportingSink reporting(sink, [&](std::uint64_t done) {
      self.report(Event::Stage::kLayer, subject, done, layer.size);
    });
    source.blob(self.name, layer, reporting);
  });
}

/// Whether the variant's files need no work. While refreshing, damaged ones do.
bool is_unpacked(const Selecting& self, const fs::path& folder, const Config& config) {
  try {
    const fs::path relative = folder.lexically_relative(self.cache.root());
    if (!open_folder_inside(self.cache.root(), relative).valid()) return false;
  } catch (const Error& error) {
    if (!self.request.refresh || error.code() != ErrorCode::kIntegrity) throw;
    return false;
  }
  return !self.request.refresh || check_unpacked(folder, config).empty();
}

/// Throws kCache unless there is room for the layer, if it is to be fetched, and for its files.
void check_room_for(const Selecting& self, const VariantManifest& manifest,
                    const std::string& subject) {
  const std::uint64_t layer = self.cache.has_blob(manifest.layer.digest) ? 0 : manifest.layer.size;
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() - layer;
  check_room(self.cache.root(), layer + std::min(most, manifest.unpacked_size), subject);
}

/// Moves a damaged folder aside, in one step, and removes it. Who has loaded from it has a copy.
void drop_unpacked(const fs::path& folder) {
  const fs::path aside = folder.parent_path() / (".tmp-" + unique_suffix());
  std::error_code error;
  fs::rename(folder, aside, error);
  if (error) fail_cache("remove", folder, error.value());
  fs::remove_all(aside, error);
}

void get_files(Selecting& self, const VariantManifest& manifest, const Config& config,
               const fs::path& folder, const std::string& subject) {
  if (is_unpacked(self, folder, config)) return;
  const FileLock held = self.cache.lock(manifest.config.digest);
  if (is_unpacked(self, folder, config)) return;  // another process was faster
  self.cache.make_folder("unpacked");
  if (std::error_code error; fs::symlink_status(folder, error).type() != fs::file_type::not_found) {
    drop_unpacked(folder);
  }
  check_room_for(self, manifest, subject);
  const fs::path layer = get_layer(self, manifest.layer, subject);
  self.report(Event::Stage::kUnpack, subject, 0, manifest.unpacked_size);
  unpack_layer(layer, config, manifest.unpacked_size, folder, subject);
  self.report(Event::Stage::kUnpack, subject, manifest.unpacked_size, manifest.unpacked_size);
}

/// Remembers which index this version is. Last of all: a ref promises a version that is here.
void remember(Selecting& self) {
  if (!self.fetched_index) return;
  const Selected& selected = self.selected;
  const int version = self.request.version;
  if (cached(self, selected.descriptor, "index of " + self.name) == std::nullopt) {
    self.cache.write_document(selected.descriptor, *self.fetched_index);
  }
  std::optional<Ref> known;
  try {
    known = self.cache.read_ref(selected.registry, self.name, version);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIntegrity) throw;  // damaged: write it anew
  }
  if (known && known->index == selected.descriptor) return;
  self.cache.write_ref({selected.registry, self.name, version, selected.descriptor});
}

}  // namespace

Installed install(std::string_view name, const Request& request) {
  // From the first look to the lease: gc takes nothing that was seen meanwhile.
  FileLock used = Cache(request.cache, request.stop).use();
  Selecting self = start_selecting(name, request);
  const Selected& selected = self.selected;
  if (!selected.resolution.chosen) throw Error(ErrorCode::kNoVariant, selected.no_variant);
  if (!used.held() && self.fetched_index) used = self.cache.use_to_write();

  Installed installed;
  installed.variant = selected.index.variants.at(*selected.resolution.chosen);
  const std::string subject = package_of(self) + " " + installed.variant.id;
  const VariantManifest manifest = get_manifest(self, installed.variant, subject);
  installed.config = get_config(self, manifest.config, subject);
  check_agreement(selected.index, installed.variant, installed.config);
  installed.folder = self.cache.unpacked_path(manifest.config.digest);
  installed.library = installed.folder / installed.config.library;
  get_files(self, manifest, installed.config, installed.folder, subject);
  remember(self);
  installed.lease = self.cache.lease(manifest.config.digest);
  installed.requests = self.source.requests();
  installed.bytes_fetched = self.source.bytes_fetched();
  installed.selected = std::move(self.selected);
  return installed;
}

}  // namespace kiln
