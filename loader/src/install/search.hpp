// SPDX-License-Identifier: Apache-2.0
//
// Search: which packages a registry has. Of a signed one, those that its metadata vouches for, and
// nobody is asked for a list; of another one, those that it lists (store/registry.hpp). Beside
// install. Safe from several threads.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/request.hpp"

namespace kiln {

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
