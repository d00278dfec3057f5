// SPDX-License-Identifier: Apache-2.0
//
// Sign: says in signed metadata which index each version in a registry folder is, so that a client
// that trusts the registry's root believes no server. After publish, before push and export. What
// was signed stays named; its versions only rise. A client checks all of it here before anything
// is visible, and the rename of kiln.tuf's index.json is the only commit.
//
// A document that too few keys have signed stays in a draft next to it (draft.hpp), which no client
// reads: others sign it there or elsewhere, and the last signature makes it visible. Each role
// waits for its own signers alone.
//
//   start_signing   where it begins: what clients see, the newest root, what is pending     Start
//   plan_roles      what each role is to say, and the signatures of the keys given          Plan
//   make_visible    of that what enough have signed, as a client checks it               Visible
//   sign_registry   the report, the commit into kiln.tuf, and the draft of what waits SignReport
//
// Each takes what those before it gave, and changes none of it; the last alone writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "registry/folder/trust_files.hpp"
#include "registry/trust/delegations.hpp"
#include "registry/trust/draft.hpp"
#include "registry/trust/keys.hpp"

namespace kiln::registry {

struct SignRequest {
  std::filesystem::path registry;
  std::vector<PrivateKey> keys;                   ///< each signs what it may; none: a draft alone
  std::vector<std::filesystem::path> roots = {};  ///< finished root drafts to add, in their order
  /// Drafts of this registry that came back. Signatures of what the folder's draft has too are
  /// taken over; another document only if it lacks no signature: the keys here never sign what
  /// was written elsewhere.
  std::vector<std::filesystem::path> drafts = {};
  /// What is signed elsewhere already, as a server has it: signed on from there if it has what the
  /// folder lacks, and follows from a root of the folder or of `roots`.
  TrustFiles onto = {};
  std::set<std::string> only = {};                 ///< look at these packages; empty: at all
  std::map<std::string, std::string> yanked = {};  ///< "geglu-mlp/1" -> why
  std::vector<Advisory> advisories = {};           ///< to publish; one of that id is replaced
  std::set<std::string> lifted = {};               ///< ids of advisories to take back
  std::string advising_role = {};                  ///< whose they are; empty: targets
  std::optional<Publisher> publisher = {};         ///< to appoint
  std::string dismissed = {};                      ///< publisher whom to take all from
  /// For how long snapshot and timestamp hold. Each is signed anew in time, or nothing installs.
  int days = 14;
};

struct SignReport {
  bool is_visible = false;  ///< whether clients see more than before; else all waits in the draft
  std::uint64_t root = 0;   ///< versions of the documents that clients see
  std::uint64_t targets = 0;
  std::uint64_t timestamp = 0;       ///< and of the snapshot
  std::int64_t expires = 0;          ///< when the first of them expires, in seconds since 1970
  std::vector<std::string> changed;  ///< names that are new, or have another index or yank now
  /// Names of which clients see less than the folder and the draft have; true: it is taken back.
  std::map<std::string, bool> waiting;
  std::uint64_t waiting_root = 0;    ///< the newest root that clients do not see yet; 0: none
  std::vector<Missing> missing;      ///< whose signatures the draft lacks
  std::filesystem::path draft;       ///< empty: nothing waits
  std::optional<std::size_t> names;  ///< how many clients see; nothing where only a part was read
};

/// Throws kUsage where there is no root yet, kTrust for a key that may sign nothing and for files
/// that no client would accept; kConflict for a root other than the one that has its number, for a
/// draft of another state, and for a server's metadata that was signed apart; kNotFound for a
/// version to yank that was never signed, and for an advisory to lift, or its role, that is not
/// there.
SignReport sign_registry(const SignRequest& request);

}  // namespace kiln::registry
