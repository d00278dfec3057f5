// SPDX-License-Identifier: Apache-2.0
#include "install.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "kiln/error.hpp"
#include "select.hpp"
#include "unpack.hpp"
#include "verify.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

/// A blob that is small enough for memory.
class MemorySink final : public BlobSink {
 public:
  MemorySink(Descriptor promised, Subject subject)
      : promised_(std::move(promised)),
        subject_(std::move(subject)),
        verifier_(promised_, subject_) {}

  std::uint64_t size() const override { return bytes_.size(); }
  void write(std::string_view bytes) override {
    verifier_.update(bytes);
    bytes_ += bytes;
  }
  void restart() override {
    bytes_.clear();
    verifier_ = StreamVerifier(promised_, subject_);
  }
  void finish() override { verifier_.finish(); }
  std::string take() {
    finish();
    return std::move(bytes_);
  }

 private:
  Descriptor promised_;
  Subject subject_;
  StreamVerifier verifier_;
  std::string bytes_;
};

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
    self.report(Event::Stage::kManifest, subject, 0, variant.manifest.size);
    bytes = self.source.open(package_of(self), what).manifest(self.name, variant.manifest);
    verify_bytes(*bytes, variant.manifest, {what, self.source.registry(), ""});
    self.cache.write_document(variant.manifest, *bytes);
    self.report(Event::Stage::kManifest, subject, bytes->size(), variant.manifest.size);
  }
  return parse_manifest(*bytes, what);
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
    self.report(Event::Stage::kConfig, subject, 0, descriptor.size);
    Source& source = self.source.open(package_of(self), what);
    MemorySink sink(descriptor, {what, source.origin(self.name, descriptor),
                                 "The registry is damaged: tell its publisher"});
    source.blob(self.name, descriptor, sink);
    bytes = sink.take();
    self.cache.write_document(descriptor, *bytes);
    self.report(Event::Stage::kConfig, subject, bytes->size(), descriptor.size);
  }
  return parse_config(*bytes, what);
}

/// The layer in the cache, its bytes verified just now whether they were fetched or found.
fs::path get_layer(Selecting& self, const Descriptor& layer, const std::string& subject) {
  const std::string what = "layer of " + subject;
  if (self.cache.has_blob(layer.digest)) {
    fs::path path = self.cache.blob_path(layer.digest);
    try {
      const FileDescriptor file = try_open(path, O_RDONLY | O_NOFOLLOW);
      StreamVerifier verifier(
          layer, {what, path.string(), "Run 'kiln install --refresh' to fetch it again"});
      if (!file.valid()) fail_cache("open", path, errno);
      read_pieces(file.get(), path, [&](std::string_view piece) { verifier.update(piece); });
      verifier.finish();
      return path;
    } catch (const Error& error) {
      if (!self.request.refresh || error.code() != ErrorCode::kIntegrity) throw;
      self.cache.drop_blob(layer.digest);
    }
  }
  Source& source = self.source.open(package_of(self), what);
  self.report(Event::Stage::kLayer, subject, 0, layer.size);
  const Subject names{what, source.origin(self.name, layer),
                      "The registry is damaged: tell its publisher"};
  return self.cache.write_blob(layer, names, [&](BlobSink& sink) {
    ReportingSink reporting(sink, [&](std::uint64_t done) {
      self.report(Event::Stage::kLayer, subject, done, layer.size);
    });
    source.blob(self.name, layer, reporting);
  });
}

bool is_unpacked(const fs::path& folder) {
  return ::access(folder.c_str(), F_OK) == 0;
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
  const bool refresh = self.request.refresh;
  if (is_unpacked(folder) && !(refresh && !check_unpacked(folder, config).empty())) return;
  const FileDescriptor held = self.cache.lock(manifest.config.digest);
  if (is_unpacked(folder)) {  // another process was faster, or the files are damaged
    if (!refresh || check_unpacked(folder, config).empty()) return;
    drop_unpacked(folder);
  }
  const fs::path layer = get_layer(self, manifest.layer, subject);
  self.cache.make_folder("unpacked");
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
  Selecting self = start_selecting(name, request);
  const Selected& selected = self.selected;
  if (!selected.resolution.chosen) throw Error(ErrorCode::kNoVariant, selected.no_variant);

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
  installed.requests = self.source.requests();
  installed.bytes_fetched = self.source.bytes_fetched();
  installed.selected = std::move(self.selected);
  return installed;
}

}  // namespace kiln
