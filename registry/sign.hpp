// SPDX-License-Identifier: Apache-2.0
//
// Sign: says in signed metadata which index each version in a registry folder is, so that a client
// that trusts the registry's root believes no server. After publish, before push and export. What
// was signed stays named; its versions only rise. A client checks all of it here before anything
// is written, and the rename of kiln.tuf's index.json is the only commit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "keys.hpp"
#include "trust_files.hpp"

namespace kiln::registry {

struct SignRequest {
  std::filesystem::path registry;
  std::vector<PrivateKey> keys;                   ///< each signs what the root lets it sign
  std::vector<std::filesystem::path> roots = {};  ///< finished root drafts to add, in their order
  /// What is signed elsewhere already, as a server has it: signed on from there if it is ahead, and
  /// follows from a root of the folder or of `roots`.
  TrustFiles onto = {};
  std::map<std::string, std::string> yanked = {};  ///< "geglu-mlp/1" -> why
  /// For how long snapshot and timestamp hold. Each is signed anew in time, or nothing installs.
  int days = 14;
};

struct Signed {
  trust::Root root;
  std::uint64_t targets = 0;         ///< versions of the documents
  std::uint64_t timestamp = 0;       ///< and of the snapshot
  std::int64_t expires = 0;          ///< when the first of them expires, in seconds since 1970
  std::vector<std::string> changed;  ///< names that are new, or have another index or yank now
  std::size_t names = 0;
};

/// Throws kUsage where there is no root yet, kTrust for a key that may sign nothing, for a role
/// that no key was given for, and for files that no client would accept; kConflict for a root
/// other than the one that has its number, kNotFound for a version to yank that was never signed.
Signed sign_registry(const SignRequest& request);

}  // namespace kiln::registry
