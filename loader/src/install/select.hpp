// SPDX-License-Identifier: Apache-2.0
//
// Select: the first half of install: probe, the version's index (from the cache or the registry),
// resolve. Internal: what `install` carries on with, where install.hpp's Selected is what it shows.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "install/install.hpp"
#include "install/lock.hpp"
#include "store/cache.hpp"
#include "store/fetch.hpp"

namespace kiln {

/// Whether nothing may be fetched: the request says so, or $KILN_OFFLINE.
bool is_offline(const Request& request);

/// A registry, or what stands in for it (Request::from), opened when it is first needed: a warm
/// cache never asks.
class LazySource {
 public:
  explicit LazySource(const Request& request);
  /// For what the cache lacks: "index of geglu-mlp@1", of `package` (what to install to have it).
  /// Throws kOffline where nothing may be fetched.
  Source& open(std::string_view package, std::string_view what);
  bool offline() const { return offline_; }
  const std::string& registry() const { return registry_; }
  int requests() const { return source_ ? source_->requests() : 0; }
  std::uint64_t bytes_fetched() const { return source_ ? source_->bytes_fetched() : 0; }

 private:
  std::string registry_;
  std::string from_;  // empty: the registry itself
  bool offline_;
  SourceOptions options_;
  std::unique_ptr<Source> source_;
};

/// One request under way. Nothing has been written yet.
struct Selecting {
  std::string name;
  Request request;
  Cache cache;
  LazySource source;
  Selected selected = {};
  bool recalled = false;  ///< selected.index is the cached one
  /// The index's bytes where they came from the registry and not from the cache.
  std::optional<std::string> fetched_index = {};
  /// Where the request is held to a lock file.
  std::optional<Held> held = {};

  void report(Event::Stage stage, const std::string& subject, std::uint64_t done,
              std::uint64_t total) const {
    if (request.on_event) request.on_event({stage, subject, done, total});
  }
};

/// The request, checked, and nothing more.
Selecting begin_selecting(std::string_view name, const Request& request, std::optional<Held> held);

/// The whole: index and resolution.
Selecting start_selecting(std::string_view name, const Request& request);

/// What a request, and the deny list of the settings, ask of resolve.
Selection selection_of(const Request& request);

/// The sonames that the choice depends on, into `host`: on this machine, where opening a library
/// can take most of a second (cuBLASLt is 500 MB), or, where the request has the facts of another,
/// in those, which must speak of them all (kUsage): this machine's answer could differ from that
/// one's.
void look_up_libraries(const Request& request, Host& host, const Index& index);

/// get_kernel's own condition: kUsage for a request that is for another machine than this one.
void check_loadable(std::string_view name, const Request& request);

}  // namespace kiln
