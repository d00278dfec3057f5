// SPDX-License-Identifier: Apache-2.0
//
// Error: the one exception type of Kiln. Its code says which stage refused and is the exit code of
// the command line tool; its text says operation, subject, found against expected, and the next
// step.
#pragma once

#include "kiln/compiler.hpp"

#include <stdexcept>
#include <string>
#include <string_view>

namespace kiln {

/// Released numbers never change.
enum class ErrorCode : int {
  kInternal = 1,      ///< a bug in Kiln
  kUsage = 2,         ///< the request is not valid
  kNoVariant = 3,     ///< the version exists, nothing in it fits this machine
  kNotFound = 4,      ///< no such registry, package, version or op
  kNetwork = 5,       ///< the registry did not answer, or not in full
  kIntegrity = 6,     ///< bytes are not the ones that were promised, or break the format
  kTrust = 7,         ///< a signature, version or date of trust metadata does not hold
  kLock = 8,          ///< the lock file does not hold, or forbids, what was asked for
  kCache = 9,         ///< the cache folder cannot be used: permissions, no room, foreign owner
  kOffline = 10,      ///< not in the cache, and the network must not be asked
  kUpgrade = 11,      ///< the manifest needs a newer Kiln
  kLoad = 12,         ///< the library does not load, or its ABI table is refused
  kInvalidCall = 13,  ///< a tensor, attribute or workspace does not fit the op's schema
  kDevice = 14,       ///< a CUDA driver call failed
  kBuild = 15,        ///< a variant did not compile, or is not what package.json says
  kConflict = 16,     ///< different bytes under a version that is already published
  kCancelled = 130,   ///< the caller, or Ctrl-C, asked to stop
};

/// "integrity", "no-variant", …: the word that messages and JSON use for a code. A literal, which
/// lives as long as the process and ends with a NUL: printf("%s", to_string(code).data()).
std::string_view to_string(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace kiln
