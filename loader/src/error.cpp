// SPDX-License-Identifier: Apache-2.0
#include "kiln/error.hpp"

#include "documents/quote.hpp"

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

std::string quote(std::string_view text) {
  constexpr std::size_t kShown = 80;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7e) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 0xf];
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  out += text.size() > kShown ? "\"..." : "\"";
  return out;
}

}  // namespace kiln
