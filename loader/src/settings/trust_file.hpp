// SPDX-License-Identifier: Apache-2.0
//
// TrustFile: whom a user trusts: trust.json, next to the settings file. `kiln trust` writes it.
// Part of settings, which reads it. parse and serialize are pure.
//
//   {
//     "schema": "kiln.trust/1",
//     "roots": {"https://ghcr.io/acme": "{\"signatures\":…"},
//     "unsigned": ["/srv/kiln"],
//     "required": [{"registry": "https://ghcr.io/acme", "package": "geglu-*",
//                   "statement": "signature", "threshold": 1, "keys": ["-----BEGIN PUBLIC KEY…"]}]
//   }
//
// A root is TUF root metadata, byte for byte. "required" may be left out: whose statements about a
// version must be there, over what vouches for it (attest/statement.hpp). Whoever may write this
// file says what runs: it must belong to this user or to root, and nobody else may write to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_lock.hpp"

namespace kiln {

/// Of each version of the packages: so many of these keys must have signed this statement.
struct Requirement {
  std::string registry;           ///< canonical, or the start of one up to a '/'
  std::string package;            ///< a shell pattern of names
  std::string statement;          ///< a word of attest::kKinds
  std::vector<std::string> keys;  ///< public, in PEM
  std::uint64_t threshold = 1;

  bool operator==(const Requirement&) const = default;
  bool covers(std::string_view asked_registry, const std::string& asked_package) const;
};

struct Trust {
  std::map<std::string, std::string> roots;  ///< registry (canonical) -> root metadata
  /// Registries that are believed as they are: each a registry, or the start of one up to a '/' or
  /// to its port. "/" is every folder.
  std::vector<std::string> unsigned_registries;
  std::vector<Requirement> required;

  bool operator==(const Trust&) const = default;

  const std::string* root_of(const std::string& registry) const;  ///< null: none
  bool is_unsigned(const std::string& registry) const;
};

/// Whether a registry may be called, or begin, so.
bool may_be_registry(std::string_view entry);
inline constexpr std::string_view kRegistryExpected =
    "an absolute folder or a URL, like /srv/kiln or https://mirror.lan";

/// Throws kUsage, naming the file.
Trust parse_trust(std::string_view text, const std::string& path);
std::string serialize_trust(const Trust& trust);

/// How errors call a file that decides, and what to do about one that is wrong.
struct OwnedFile {
  std::string_view what = "trust";
  std::string next = "Correct the file; or remove it, and 'kiln trust add' makes it anew";
};

/// A file that says what may run: nothing if it is absent. Throws kUsage for one that cannot be
/// read, has more bytes, or that another user may write to.
std::optional<std::string> read_owned(const std::filesystem::path& path, std::size_t most,
                                      const OwnedFile& file = {});

/// Where the file is, or would be; empty if the environment names no place.
std::filesystem::path trust_path();

/// Nothing trusted where there is no such file. Throws kUsage for one that cannot be read or that
/// another user may write to.
Trust read_trust();

/// Reads, changes and writes the file, one process at a time. Throws what these throw, kCache, and
/// kCancelled where the wait for another process was stopped: nothing is changed then.
void update_trust(const std::function<void(Trust&)>& change, const Waiting& waiting = {});

}  // namespace kiln
