// SPDX-License-Identifier: Apache-2.0
//
// TrustedSet: decides which metadata to believe, by section 5 of the TUF specification, without
// files and requests. It begins with a root that its owner trusts and takes one document after the
// other, each checked against those before it. A refused document changes nothing. Between metadata
// and updater. Pure: the time is given. All throw kTrust.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trust/metadata.hpp"
#include "trust/signature_memo.hpp"

namespace kiln::trust {

/// What to do with a document that has expired, or is older than one seen before. kRefused: throw,
/// since someone may hold newer ones back. kTold: accept it and tell, where it was carried here and
/// no registry can be asked; of two states the newer one decides, whichever came last.
enum class Expiry { kRefused, kTold };

struct Clock {
  std::int64_t now = 0;  ///< of the whole update, in seconds since 1970
  Expiry expiry = Expiry::kRefused;
};

/// kLeft: the caller knows that none speaks of what it asks for; where the bytes were verified
/// before, they are passed over unread.
enum class Advisories { kRead, kLeft };

/// What the metadata says of a name, and whose keys must sign that.
struct SignedTarget {
  Target target;
  Signers by;
  Digest signers;  ///< one value for these keys and this threshold
  /// Of all roles that were asked for the name, each of which may advise on it.
  std::vector<Advisory> advisories = {};
};

/// The ids of those who have signed. One key under two ids, or in two spellings, counts once.
std::set<std::string> who_signed(const std::string& canonical,
                                 const std::vector<Signature>& signatures, const Keys& keys,
                                 const Signers& signers);

class TrustedSet {
 public:
  /// `root`: trusted as it is, but signed by its own keys. `origin` stands in messages: a URL.
  /// `memo`: spares what was verified before; it outlives this.
  TrustedSet(std::string_view root, std::string origin, const Clock& clock,
             SignatureMemo* memo = nullptr);

  const Root& root() const { return root_; }
  const std::vector<std::string>& told() const { return told_; }  ///< one a line
  const std::optional<Timestamp>& timestamp() const { return timestamp_; }
  const std::optional<Snapshot>& snapshot() const { return snapshot_; }
  /// Null unless that role's document was taken as this parent's keys sign it. Another parent that
  /// delegates to the role may have other keys, and has vouched for nothing.
  const Targets* targets(const std::string& role, const std::string& parent) const;
  const Targets* targets() const { return targets("targets", "root"); }

  /// The next version, signed by the keys of this one and by its own. True: other keys sign
  /// timestamp or snapshot now, and what the earlier ones signed is to be forgotten. This recovers
  /// from a stolen key that signed a version which nothing could follow.
  bool take_root(std::string_view bytes);
  /// No further version will come: the newest must not have expired.
  void check_root_is_fresh();

  /// False, with nothing changed, for the version that it has, or an older one under kTold.
  /// Throws for one that names an older snapshot.
  bool take_timestamp(std::string_view bytes);
  void check_timestamp_is_fresh();

  /// What the last update left. True: it is the one that the timestamp names. Else it is older, and
  /// the next one must not be older still.
  bool recall_snapshot(std::string_view bytes);
  /// The one that the timestamp names.
  void take_snapshot(std::string_view bytes);
  void check_snapshot_is_fresh();

  /// What the snapshot says of a role's document.
  const MetaFile& file_of(const std::string& role) const;

  /// "targets", whose parent is "root", or a role that `parent` delegates to.
  void take_targets(std::string_view bytes, const std::string& role, const std::string& parent);
  /// The same from what the last update left, without a snapshot and without a request.
  void recall_targets(std::string_view bytes, const std::string& role, const std::string& parent,
                      Advisories advisories);

  /// Looks a name up in the roles that may list it, in the order of the delegations, a role before
  /// those that it delegates to, 32 at most. `load` takes a role's document, or returns false where
  /// it cannot. Nothing then, and where no role lists the name.
  using Load = std::function<bool(const std::string& role, const std::string& parent)>;
  std::optional<SignedTarget> search(const std::string& name, const Load& load) const;

 private:
  std::string name_of(std::string_view role) const;
  bool is_known(const Digest& fact) const;
  template <class Document>
  Document read(std::string_view bytes, const std::string& role, const Keys& keys,
                const Signers& signers) const;
  struct Who {
    const Keys& keys;
    const Signers& signers;
  };
  Who who_signs(const std::string& role, const std::string& parent) const;
  void keep(Targets targets, const Digest& bytes, const std::string& role,
            const std::string& parent);
  void check_is_fresh(std::int64_t expires, std::string_view role, std::uint64_t version);
  void check_only_forward(const Snapshot& next) const;
  [[noreturn]] void fail(std::string_view role, const std::string& found) const;

  std::string origin_;
  Clock clock_;
  SignatureMemo* memo_;
  std::vector<std::string> told_;
  Root root_;
  std::optional<Timestamp> timestamp_;
  std::optional<Snapshot> snapshot_;
  struct Taken {
    Targets targets;
    Digest bytes;
  };
  std::map<std::string, Taken> targets_;
  /// Role and parent: whose keys signed what was taken.
  std::set<std::pair<std::string, std::string>> vouched_;
};

}  // namespace kiln::trust
