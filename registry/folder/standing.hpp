// SPDX-License-Identifier: Apache-2.0
//
// Standing: how one signed state of a registry stands to another: which has what the other lacks.
// Numbers of snapshot and timestamp alone say nothing of that: each renewal raises them, and
// another folder renews, too. Under sign, push and export, so that none puts an older state in the
// place of a newer one. Pure.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "registry/folder/trust_files.hpp"

namespace kiln::registry {

/// A state: its files, and what a client makes of them.
struct SignedState {
  const TrustFiles& files;
  const trust::TrustedSet& set;
};

/// Of the first to the second. kApart: each has what the other lacks, or both gave one number to
/// other bytes.
enum class Order { kSame, kAhead, kBehind, kApart };

struct Standing {
  Order roots = Order::kSame;
  Order roles = Order::kSame;   ///< targets, and those to which they delegate
  Order newest = Order::kSame;  ///< snapshot and timestamp, which say nothing of a version
  Order all() const;

  std::vector<std::string> first;   ///< documents in which they differ: "targets 2", "no acme"
  std::vector<std::string> second;  ///< the same of the second
  std::vector<std::string>
      alone;  ///< what only the first one's roles say: "the yank of geglu-mlp/1"
  /// The highest numbers that clients may have seen of either.
  std::uint64_t snapshot = 0;
  std::uint64_t timestamp = 0;
};

/// Where the newer root took the online keys away, what the older state's said is the newest does
/// not count, nor a document that the newer one's keys would not have signed: a stolen key may have
/// done so. A document of a higher number is newer only if it says all that the lower one says.
Standing compare(const SignedState& first, const SignedState& second);

/// "the folder has targets 1, the server has targets 2".
std::string describe(const Standing& standing, const std::string& first, const std::string& second);

/// What a folder's keeper can do that was signed apart from its server: a next step.
std::string how_to_rejoin(const Standing& standing, const std::filesystem::path& registry);

}  // namespace kiln::registry
