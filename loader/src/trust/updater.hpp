// SPDX-License-Identifier: Apache-2.0
//
// Updater: brings the metadata of one registry up to date and says what a name's bytes are: the
// client's workflow of the TUF specification (5.1 to 5.6). Before it: the root that a user trusts.
// After it: find_index. What it has taken stays in a folder and only moves forward; a refused
// document leaves the folder as it was. For one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kiln/error.hpp"
#include "trust/metadata_folder.hpp"
#include "trust/trusted_set.hpp"

namespace kiln::trust {

/// Where metadata comes from. Nothing that it gives is trusted.
class MetadataSource {
 public:
  virtual ~MetadataSource() = default;

  /// A file of metadata by its name there. Nothing where there is no such file. Throws kTrust for
  /// more than `most` bytes, else what its transport throws.
  virtual std::optional<std::string> fetch(const std::string& file, std::size_t most) const = 0;
};

/// A role whose document could not be used: what it lists is unknown, not empty.
struct PassedRole {
  Delegation by;
  Error why;
};

/// Whether a role may list versions of this package.
bool may_speak_of(const Delegation& role, const std::string& package);

/// What all roles say together.
struct Listed {
  std::map<std::string, Target> targets;  ///< by name
  std::vector<PassedRole> passed;
};

/// Whether a document that was taken into this folder has an advisory that may speak of this
/// version: one small file says it, for a caller that needs nothing else of the metadata.
bool may_advise(const MetadataFolder& folder, std::string_view package, int version);

class Updater {
 public:
  /// `root`: the bytes of the trusted root; `origin`: for messages. Throws kTrust for what is
  /// not a root. Reads and writes nothing yet.
  /// `memo` as of TrustedSet.
  Updater(std::string_view root, MetadataFolder folder, std::string origin, const Clock& clock,
          SignatureMemo* memo = nullptr);

  /// Asks for newer metadata and takes it. Throws kTrust for metadata that is invalid or expired,
  /// kNotFound if there is none.
  void refresh(const MetadataSource& source);

  /// What the metadata says of a name; nothing if no role lists it. Call refresh first.
  std::optional<SignedTarget> find(const std::string& name, const MetadataSource& source);

  /// What it says of a version, from what the last update left. No request is made, and expired
  /// documents count. Nothing if that is not enough to tell. Advisories may be missing where none
  /// speaks of the version.
  std::optional<SignedTarget> recall(const std::string& package, int version);

  /// The newest root that earlier updates took after the trusted one. No request is made.
  const Root& recall_root() {
    recall_roots();
    return root();
  }

  /// Every name that a role lists, with what find() says of it. A publisher's document that is
  /// missing, expired or invalid does not hide the names of others. Call refresh first.
  Listed list(const MetadataSource& source);

  /// The same from what the last update left. No request is made, and expired documents count.
  /// Empty where that has no targets.
  Listed recall_list();

  const TrustedSet& trusted() const { return trusted_; }
  const Root& root() const { return trusted_.root(); }
  /// What refresh() took; of two, the larger is the newer state.
  std::pair<std::uint64_t, std::uint64_t> state() const {
    return {trusted_.root().version, trusted_.timestamp()->version};
  }
  /// Documents that were accepted under Expiry::kTold, expired or older; one a line.
  const std::vector<std::string>& told() const { return trusted_.told(); }

 private:
  void recall_roots();
  void update_root(const MetadataSource& source);
  void update_timestamp(const MetadataSource& source);
  void update_snapshot(const MetadataSource& source);
  void update_targets(const MetadataSource& source, const std::string& role,
                      const std::string& parent);
  /// Takes a role's document, or throws.
  using Take = std::function<void(const std::string& role, const std::string& parent)>;
  Listed list_by(const Take& take);
  void recall_role(const std::string& role, const std::string& parent, Advisories advisories);
  void take_role(const MetadataSource& source, const std::string& role, const std::string& parent);
  std::string versioned(std::uint64_t version, const std::string& file) const;

  MetadataFolder folder_;
  std::string origin_;
  TrustedSet trusted_;
};

}  // namespace kiln::trust
