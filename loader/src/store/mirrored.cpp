// SPDX-License-Identifier: Apache-2.0
//
// A registry with mirrors. A mirror that fails, lacks or corrupts something is left for good, and
// the next one is asked: what one mirror lacks, the registry may have. All are asked for versions
// and referrers, because each may have a part of them; the answers are joined, and a mirror that
// gives none is reported. Documents and blobs are verified by their digest, whoever sends them.
// Which digest a version's tag names is taken from a mirror as from the registry, since nothing
// signs it: list only mirrors that you trust as much. A mirror that did not answer this install
// before is not asked again. Each place is asked with its own host's login, so that no mirror sees
// the registry's.
#include <functional>
#include <set>
#include <utility>

#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "settings/settings.hpp"
#include "store/registry.hpp"

namespace kiln {
namespace {

constexpr int kMostCut = 2;  // answers of one mirror that were cut short

class Mirrored final : public Repository {
 public:
  Mirrored(const std::string& registry, std::vector<std::string> mirrors, std::string_view name,
           const Settings& settings, const Patience& patience, Traffic& traffic)
      : name_(name), patience_(patience), settings_(settings), traffic_(traffic) {
    at_.places = std::move(mirrors);
    at_.places.push_back(registry);
  }

  bool exists(const Descriptor&) const override { return true; }

  void open(const Descriptor& descriptor, BlobSink& sink, const Asking& asking) const override {
    ask(asking.what, [&](const Repository& repository) {
      const bool resumed = sink.size() > 0;
      if (!resumed)
        sink.restart();  // a sink in memory keeps what a place had sent before it was cut
      try {
        repository.open(descriptor, sink, asking);
        sink.finish();
      } catch (const TryAgain&) {
        throw;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kIntegrity) throw;
        // Wrong bytes are of no use to the next one; a beginning that was cut is.
        sink.restart();
        if (!resumed) throw;
        repository.open(descriptor, sink, asking);
        sink.finish();
      }
    });
  }

  std::string origin(const Descriptor& descriptor) const override {
    return at_.repository ? at_.repository->origin(descriptor) : at_.places.back();
  }
  std::string advice() const override { return "Check the registry and its mirrors"; }

  Document index(int version) const override {
    Document document;
    ask("index of " + label(name_, version),
        [&](const Repository& repository) { document = repository.index(version); });
    return document;
  }

  std::optional<Document> manifest(const std::string& tag) const override {
    std::optional<Document> found;
    ask(name_ + ":" + tag, [&](const Repository& repository) {
      found = repository.manifest(tag);
      if (!found && !at_.is_registry()) {
        throw Error(ErrorCode::kNotFound, "there is no " + name_ + ":" + tag);
      }
    });
    return found;
  }

  ReferrerList referrers(const Descriptor& subject) const override {
    ReferrerList found;
    ask_all("referrers of " + subject.digest.str(), [&](const Repository& repository) {
      found = join_referrers(std::move(found), repository.referrers(subject));
    });
    return found;
  }

  std::vector<int> versions() const override {
    std::set<int> versions;
    ask_all("tags of " + name_, [&](const Repository& repository) {
      for (const int version : repository.versions()) versions.insert(version);
    });
    return {versions.begin(), versions.end()};
  }

 private:
  /// Throws what the registry throws where no place has answered.
  void ask_all(const std::string& what,
               const std::function<void(const Repository&)>& question) const {
    bool answered = false;
    for (const std::string& place : at_.places) {
      const bool is_registry = &place == &at_.places.back();
      if (!is_registry && traffic_.left.contains(place)) continue;
      const Patience patience = is_registry && !answered ? patience_ : of_mirror(patience_);
      try {
        question(*open_place(place, name_, settings_, patience, traffic_));
        answered = true;
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kCancelled || (is_registry && !answered)) throw;
        if (!is_registry && error.code() == ErrorCode::kNetwork) traffic_.left.insert(place);
        if (error.code() == ErrorCode::kNotFound || !patience_.on_event) continue;
        patience_.on_event({Event::Stage::kRetry, what, 0, 0, place + " is left: " + error.what()});
      }
    }
  }

  /// Who is asked now. Those before were left.
  struct At {
    std::vector<std::string> places;  ///< the mirrors, then the registry
    std::size_t place = 0;
    int cut = 0;  ///< answers of this place that were cut short
    std::unique_ptr<Repository> repository;

    bool is_registry() const { return place + 1 == places.size(); }
  };

  const Repository& repository() const {
    if (at_.repository) return *at_.repository;
    while (!at_.is_registry() && traffic_.left.contains(at_.places[at_.place])) ++at_.place;
    const std::string& place = at_.places[at_.place];
    const Patience patience = at_.is_registry() ? patience_ : of_mirror(patience_);
    at_.repository = open_place(place, name_, settings_, patience, traffic_);
    return *at_.repository;
  }

  void ask(std::string_view what, const std::function<void(const Repository&)>& question) const {
    for (;;) {
      try {
        return question(repository());
      } catch (const TryAgain& failure) {
        if (at_.is_registry() || (!failure.is_refused && ++at_.cut < kMostCut)) throw;
        leave(what, failure.found(), ErrorCode::kNetwork);
      } catch (const Error& error) {
        const bool another_may_do = error.code() == ErrorCode::kNetwork ||
                                    error.code() == ErrorCode::kNotFound ||
                                    error.code() == ErrorCode::kIntegrity;
        if (!another_may_do || at_.is_registry()) throw;
        leave(what, error.what(), error.code());
      }
    }
  }

  void leave(std::string_view what, const std::string& why, ErrorCode code) const {
    const std::string left = at_.places[at_.place];
    if (code == ErrorCode::kNetwork) traffic_.left.insert(left);
    at_.repository.reset();
    at_.cut = 0;
    ++at_.place;
    if (!patience_.on_event) return;
    patience_.on_event(
        {Event::Stage::kRetry, std::string(what), 0, 0,
         "mirror " + left + " is left: " + why + "; asking " + at_.places[at_.place]});
  }

  std::string name_;
  Patience patience_;
  Settings settings_;
  Traffic& traffic_;
  mutable At at_;
};

}  // namespace

std::unique_ptr<Repository> open_mirrored(const std::string& registry,
                                          std::vector<std::string> mirrors, std::string_view name,
                                          const Settings& settings, const Patience& patience,
                                          Traffic& traffic) {
  return std::make_unique<Mirrored>(registry, std::move(mirrors), name, settings, patience,
                                    traffic);
}

}  // namespace kiln
