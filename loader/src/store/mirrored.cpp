// SPDX-License-Identifier: Apache-2.0
//
// A registry with mirrors. A mirror that fails, lacks or corrupts something is left for good and
// the next one is asked. Documents and blobs that have a digest are verified whoever sends them;
// which digest a version's tag names is believed of a mirror as it is of the registry, since there
// are no signatures: list only mirrors that are trusted as much. Each place is asked with its own
// host's login, so that no mirror sees the registry's.
#include <algorithm>
#include <functional>
#include <utility>

#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "store/source.hpp"

namespace kiln {
namespace {

constexpr int kMirrorTries = 2;  // there is someone else to ask

class MirroredSource final : public Source {
 public:
  MirroredSource(const std::string& registry, std::vector<std::string> mirrors,
                 SourceOptions options, const Limits& limits)
      : Source(registry),
        places_(std::move(mirrors)),
        options_(std::move(options)),
        limits_(limits) {
    places_.push_back(registry);
  }

  Document index(std::string_view name, int version) override {
    const std::string what = "index of " + label(name, version);
    return ask<Document>(what, [&](Source& source) { return source.index(name, version); });
  }

  std::string manifest(std::string_view name, const Descriptor& descriptor) override {
    return ask<std::string>("manifest of " + std::string(name),
                            [&](Source& source) { return source.manifest(name, descriptor); });
  }

  void blob(std::string_view name, const Descriptor& descriptor, BlobSink& sink) override {
    const std::string what = "blob " + descriptor.digest.str() + " of " + std::string(name);
    ask<bool>(what, [&](Source& source) {
      try {
        source.blob(name, descriptor, sink);
      } catch (const Error& error) {
        // Wrong bytes are of no use to the next one; a beginning that was cut is.
        if (error.code() == ErrorCode::kIntegrity) sink.restart();
        throw;
      }
      return true;
    });
  }

  std::vector<int> versions(std::string_view name) override {
    return ask<std::vector<int>>("tags of " + std::string(name),
                                 [&](Source& source) { return source.versions(name); });
  }

  std::string origin(std::string_view name, const Descriptor& descriptor) const override {
    return source_ ? source_->origin(name, descriptor) : registry();
  }

 private:
  bool at_registry() const { return place_ + 1 == places_.size(); }

  Source& open() {
    if (source_) return *source_;
    const std::string& place = places_[place_];
    Limits limits = limits_;
    if (!at_registry()) limits.tries = std::min(limits.tries, kMirrorTries);
    source_ = place.find("://") == std::string::npos ? open_folder_source(place)
                                                     : open_http_source(place, options_, limits);
    return *source_;
  }

  template <class Result>
  Result ask(const std::string& what, const std::function<Result(Source&)>& question) {
    for (;;) {
      try {
        const Accounted accounted(*this);
        return question(open());
      } catch (const Error& error) {
        const bool another_may_do = error.code() == ErrorCode::kNetwork ||
                                    error.code() == ErrorCode::kNotFound ||
                                    error.code() == ErrorCode::kIntegrity;
        if (!another_may_do || at_registry()) throw;
        const std::string left = places_[place_];
        source_.reset();
        ++place_;
        if (options_.on_event) {
          options_.on_event(
              {Event::Stage::kRetry, what, 0, 0,
               "mirror " + left + " is left: " + error.what() + "; asking " + places_[place_]});
        }
      }
    }
  }

  /// Adds what one question cost, however it ends.
  class Accounted {
   public:
    explicit Accounted(MirroredSource& self)
        : self_(self),
          requests_(self.source_ ? self.source_->requests() : 0),
          bytes_(self.source_ ? self.source_->bytes_fetched() : 0) {}
    ~Accounted() {
      if (!self_.source_) return;
      for (int i = requests_; i < self_.source_->requests(); ++i) self_.count_request();
      self_.count_bytes(self_.source_->bytes_fetched() - bytes_);
    }
    Accounted(const Accounted&) = delete;
    Accounted& operator=(const Accounted&) = delete;

   private:
    MirroredSource& self_;
    int requests_;
    std::uint64_t bytes_;
  };

  std::vector<std::string> places_;  // the mirrors, then the registry
  std::size_t place_ = 0;            // that is asked; those before it were left
  SourceOptions options_;
  Limits limits_;
  std::unique_ptr<Source> source_;
};

}  // namespace

std::unique_ptr<Source> open_mirrored_source(const std::string& registry,
                                             const std::vector<std::string>& mirrors,
                                             SourceOptions options, const Limits& limits) {
  return std::make_unique<MirroredSource>(registry, mirrors, std::move(options), limits);
}

}  // namespace kiln
