// SPDX-License-Identifier: Apache-2.0
#include "kiln/error.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kiln {

std::string_view to_string(ErrorCode code) {
  static constexpr std::pair<ErrorCode, std::string_view> kWords[] = {
      {ErrorCode::kInternal, "internal"},
      {ErrorCode::kUsage, "usage"},
      {ErrorCode::kNoVariant, "no-variant"},
      {ErrorCode::kNotFound, "not-found"},
      {ErrorCode::kNetwork, "network"},
      {ErrorCode::kIntegrity, "integrity"},
      {ErrorCode::kTrust, "trust"},
      {ErrorCode::kLock, "lock"},
      {ErrorCode::kCache, "cache"},
      {ErrorCode::kOffline, "offline"},
      {ErrorCode::kUpgrade, "upgrade"},
      {ErrorCode::kLoad, "load"},
      {ErrorCode::kInvalidCall, "invalid-call"},
      {ErrorCode::kDevice, "device"},
      {ErrorCode::kBuild, "build"},
      {ErrorCode::kConflict, "conflict"},
      {ErrorCode::kCancelled, "cancelled"},
  };
  const auto found = std::find_if(std::begin(kWords), std::end(kWords),
                                  [&](const auto& each) { return each.first == code; });
  return found == std::end(kWords) ? "unknown" : found->second;
}

}  // namespace kiln
