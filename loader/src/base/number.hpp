// SPDX-License-Identifier: Apache-2.0
//
// Number: decimal numbers as documents, tags and options spell them. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kiln {

/// A decimal number without sign or leading zero, at most `most`.
std::optional<std::uint64_t> parse_decimal(std::string_view text, std::uint64_t most);

}  // namespace kiln
