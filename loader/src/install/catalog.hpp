// SPDX-License-Identifier: Apache-2.0
//
// Catalog: what a registry has: the versions of a package, and which packages there are. A signed
// registry's metadata says so; of another one its own lists are taken (store/registry.hpp). After
// source; installs nothing. One Catalog is for one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "install/source.hpp"
#include "kiln/error.hpp"
#include "kiln/request.hpp"

namespace kiln {

/// A version of a package as its registry has it.
struct PublishedVersion {
  int version = 0;
  std::optional<std::string> yanked;  ///< why its publisher took it back
  /// When its publisher first signed it, in seconds since 1970. Nothing where no signature says so.
  std::optional<std::int64_t> published = {};
};

/// The newest of these that was not taken back; 0 if there is none.
int newest_of(const std::vector<PublishedVersion>& versions);

/// Whether a version was published so long before `now`. One without a time is not known to be.
bool is_aged(const PublishedVersion& version, std::chrono::seconds age, std::int64_t now);

/// The newest of these that was neither taken back nor published since, and the newer ones that
/// were not taken back, which are passed over.
struct Aged {
  int version = 0;  ///< 0: none counts
  std::vector<PublishedVersion> passed;
};
Aged newest_aged(const std::vector<PublishedVersion>& versions, std::chrono::seconds age,
                 std::int64_t now);

/// One package's versions. A lock file does not count.
class Catalog {
 public:
  /// Throws kUsage, kCache, and kTrust where nobody vouches for the registry.
  Catalog(std::string_view name, const Request& request);

  /// The versions that the registry has published, ascending; offline, those that the cache knows.
  /// Throws kNotFound or kOffline in place of an empty list.
  std::vector<int> known_versions();

  /// The same, each with when it was published and why it was taken back, as a signed registry's
  /// newest metadata says; offline the cached, which may speak of versions that the cache lacks. Of
  /// other registries neither is known of any version.
  std::vector<PublishedVersion> published();

  /// Those of them that can be had: offline, what the cache knows.
  std::vector<PublishedVersion> obtainable();

  /// newest_of(obtainable()). Throws kTrust where all of them were taken back.
  int newest_version();

  /// Canonical.
  const std::string& registry() const { return source_.registry; }

 private:
  Source source_;
};

struct FoundPackage {
  std::string name;
  int version = 0;  ///< the newest that was not taken back
  std::size_t variants = 0;
  std::string summary;           ///< empty: its publisher gave none
  std::optional<Error> problem;  ///< why no more is known of it
};

struct UnreadPublisher {
  std::string role;
  Error problem;
};

struct SearchResult {
  std::string registry;  ///< canonical
  bool is_signed = false;
  std::vector<FoundPackage> packages;  ///< by name
  /// Publishers whose part of the signed metadata could not be read: which packages they have is
  /// not known.
  std::vector<UnreadPublisher> unread;
  std::size_t left_out = 0;  ///< packages that were not looked into: there are too many
};

/// The packages whose name or summary has all the words, in any case; all of them without words.
/// One that cannot be read is among them: what its summary says is not known. Throws kTrust,
/// kNotFound for a server that gives no list, kOffline, kNetwork, kCancelled.
SearchResult search(const Request& request, const std::vector<std::string>& words);

}  // namespace kiln
