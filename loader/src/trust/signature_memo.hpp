// SPDX-License-Identifier: Apache-2.0
//
// SignatureMemo: which signatures were found good before. Under trusted_set. The first signature of
// a process starts OpenSSL's providers, which costs 0.8 ms; a load that finds everything in the
// cache has no other use for them. A fact is about bytes and keys and never becomes untrue, so
// nothing here expires. The file lies next to trust.json and is trusted like it: whoever may
// write it could also write a root. For one thread.
//
//   verified     a fact a line: SHA-256 of a document, its keys and how many of them signed, in hex
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "base/digest.hpp"

namespace kiln::trust {

class SignatureMemo {
 public:
  /// An empty path: nothing is remembered. The file is read when it is first asked.
  explicit SignatureMemo(std::filesystem::path file = {}) : file_(std::move(file)) {}

  /// False for an unknown fact, and where the file cannot be trusted.
  bool knows(const Digest& fact);
  void learn(const Digest& fact);

  /// Writes what was learnt. Where that fails, the next process verifies it again.
  void save() noexcept;

 private:
  std::filesystem::path file_;
  std::optional<std::set<std::string>> known_;  ///< once read
  bool changed_ = false;
};

}  // namespace kiln::trust
