// SPDX-License-Identifier: Apache-2.0
//
// Base64: the standard alphabet, with padding. For logins, metadata inside manifests, and signed
// statements. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kiln {

/// Nothing for any other spelling than encode_base64's.
std::optional<std::string> decode_base64(std::string_view text);
std::string encode_base64(std::string_view bytes);

}  // namespace kiln
