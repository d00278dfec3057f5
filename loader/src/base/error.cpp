// SPDX-License-Identifier: Apache-2.0
#include "kiln/error.hpp"

namespace kiln {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kUsage:
      return "usage";
    case ErrorCode::kNoVariant:
      return "no-variant";
    case ErrorCode::kNotFound:
      return "not-found";
    case ErrorCode::kNetwork:
      return "network";
    case ErrorCode::kIntegrity:
      return "integrity";
    case ErrorCode::kLock:
      return "lock";
    case ErrorCode::kCache:
      return "cache";
    case ErrorCode::kOffline:
      return "offline";
    case ErrorCode::kUpgrade:
      return "upgrade";
    case ErrorCode::kLoad:
      return "load";
    case ErrorCode::kInvalidCall:
      return "invalid-call";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kBuild:
      return "build";
    case ErrorCode::kConflict:
      return "conflict";
    case ErrorCode::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

}  // namespace kiln
