// SPDX-License-Identifier: Apache-2.0
//
// Metadata: the four documents of The Update Framework (TUF, specification 1.0), parsed, and their
// form checked. trusted_set.hpp decides whether to believe one. Pure.
//
//   root        whose keys sign what          timestamp   which snapshot is the newest
//   targets     what a name's bytes are       snapshot    which targets documents belong together
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "base/utc.hpp"
#include "documents/advisory.hpp"
#include "trust/key.hpp"

namespace kiln::trust {

/// Metadata with more bytes is refused.
inline constexpr std::size_t kMaxRootBytes = 512'000;
inline constexpr std::size_t kMaxTimestampBytes = 16'384;
inline constexpr std::size_t kMaxSnapshotBytes = 2'000'000;
inline constexpr std::size_t kMaxTargetsBytes = std::size_t{4} << 20;

/// How an error about what a publisher signed ends: what became of it, and the next step.
inline constexpr char kTellPublisher[] = "; nothing of it is used. Tell the registry's publisher";

/// The name under which targets have a version of a package: "geglu-mlp/1".
std::string target_name(std::string_view package, int version);

/// Bytes of one of a name's files, as another document promises them.
struct Promise {
  std::optional<std::uint64_t> length;
  std::map<std::string, std::string> hashes;  ///< by algorithm, hex; the unknown ones too

  std::optional<Digest> sha256() const;  ///< nothing if missing or malformed

  /// Throws kTrust, naming `what`, for other bytes. Of the hashes at least one must be SHA-256 or
  /// SHA-512, if there are any.
  void check(std::string_view bytes, const std::string& what) const;
};

struct MetaFile {
  std::uint64_t version = 0;
  Promise promise;
};

/// Which keys sign a role, by id, and how many of them must.
struct Signers {
  std::set<std::string> ids;
  std::uint64_t threshold = 1;

  bool operator==(const Signers&) const = default;
};

using Keys = std::map<std::string, Key>;  ///< by id

struct Root {
  static constexpr std::string_view kType = "root";
  std::uint64_t version = 0;
  std::int64_t expires = 0;          ///< seconds since 1970
  bool consistent_snapshot = false;  ///< files carry their version, or hash, in front
  Keys keys;
  Signers root, timestamp, snapshot, targets;
};

struct Timestamp {
  static constexpr std::string_view kType = "timestamp";
  std::uint64_t version = 0;
  std::int64_t expires = 0;
  MetaFile snapshot;
};

struct Snapshot {
  static constexpr std::string_view kType = "snapshot";
  std::uint64_t version = 0;
  std::int64_t expires = 0;
  std::map<std::string, MetaFile> files;  ///< by role, without ".json"
};

struct Target {
  std::uint64_t length = 0;
  Promise promise;
  std::optional<std::string> yanked;  ///< custom.yanked: why its publisher took it back
  /// custom.published: when its signers first named it, in seconds since 1970.
  std::optional<std::int64_t> published = {};
};

/// A role to which targets delegate names.
struct Delegation {
  std::string role;
  Signers signers;
  bool terminating = false;
  std::vector<std::string> paths;          ///< shell patterns; '*' and '?' do not match '/'
  std::vector<std::string> hash_prefixes;  ///< of the SHA-256 of the name; one of the two is empty

  /// `hash`: the SHA-256 of the name, in hex.
  bool covers(const std::string& name, std::string_view hash) const;
};

struct Targets {
  static constexpr std::string_view kType = "targets";
  std::uint64_t version = 0;
  std::int64_t expires = 0;
  std::map<std::string, Target> targets;
  std::vector<Advisory> advisories;  ///< of its targets called "kiln.advisories/ID"
  Keys keys;                         ///< of the delegations
  std::vector<Delegation> delegations;
};

struct Signature {
  std::string key_id;
  std::string signature;  ///< hex
};

/// A document and what was signed of it.
template <class Document>
struct Signed {
  Document document;
  std::string canonical;
  std::vector<Signature> signatures;
};

/// kLeft: the caller has verified these bytes before; skip the canonical form.
enum class Canonical { kMade, kLeft };

/// `what` names the bytes in errors: "timestamp.json of https://…". Throws kTrust for anything
/// but such a document of specification 1.x.
template <class Document>
Signed<Document> parse(std::string_view bytes, const std::string& what,
                       Canonical canonical = Canonical::kMade);

extern template Signed<Root> parse<Root>(std::string_view, const std::string&, Canonical);
extern template Signed<Timestamp> parse<Timestamp>(std::string_view, const std::string&, Canonical);
extern template Signed<Snapshot> parse<Snapshot>(std::string_view, const std::string&, Canonical);
extern template Signed<Targets> parse<Targets>(std::string_view, const std::string&, Canonical);

using kiln::parse_time;
using kiln::to_text;

}  // namespace kiln::trust
