// SPDX-License-Identifier: Apache-2.0
#include "install/pull.hpp"

#include <utility>

#include "documents/names.hpp"
#include "install/lock.hpp"
#include "kiln/error.hpp"
#include "verify/verify.hpp"

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

VariantManifest get_manifest(Selecting& self, const Variant& variant, const std::string& subject) {
  const std::string what = "manifest of " + subject;
  std::optional<std::string> bytes = read_cached(self, variant.manifest, what);
  if (!bytes) {
    Source& source = self.source.open(subject_of(self), what);
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
  std::optional<std::string> bytes = read_cached(self, descriptor, what);
  if (!bytes) {
    Source& source = self.source.open(subject_of(self), what);
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

}  // namespace

std::string subject_of(const Selecting& self) {
  return label(self.name, self.request.version);
}

std::string subject_of(const Selecting& self, const Variant& variant) {
  return subject_of(self) + " " + variant.id;
}

std::optional<std::string> read_cached(const Selecting& self, const Descriptor& descriptor,
                                       const std::string& what) {
  try {
    return self.cache.read_document(descriptor, what);
  } catch (const Error& error) {
    if (!self.request.refresh || error.code() != ErrorCode::kIntegrity) throw;
    self.cache.drop_blob(descriptor.digest);
    return std::nullopt;
  }
}

Pulled pull_documents(Selecting& self, const Variant& variant) {
  const std::string subject = subject_of(self, variant);
  Pulled pulled;
  pulled.manifest = get_manifest(self, variant, subject);
  pulled.config = get_config(self, pulled.manifest.config, subject);
  check_agreement(self.selected.index, variant, pulled.config);
  if (self.held) {
    check_held(*self.held, subject, variant.id,
               locked_variant(variant, pulled.manifest, pulled.config));
  }
  return pulled;
}

fs::path pull_layer(Selecting& self, const Descriptor& layer, const Variant& variant) {
  const std::string subject = subject_of(self, variant);
  const std::string what = "layer of " + subject;
  try {
    if (self.cache.verify_blob(layer, what, kFetchAgain)) {
      return self.cache.blob_path(layer.digest);
    }
  } catch (const Error& error) {
    if (!self.request.refresh || error.code() != ErrorCode::kIntegrity) throw;
    self.cache.drop_blob(layer.digest);
  }
  Source& source = self.source.open(subject_of(self), what);
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

}  // namespace kiln
