// SPDX-License-Identifier: Apache-2.0
//
// Utc: a moment as documents write it, to the second. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kiln {

/// "2027-01-31T00:00:00Z", both ways, as seconds since 1970. Nothing for another spelling.
std::optional<std::int64_t> parse_time(std::string_view text);
std::string to_text(std::int64_t time);

}  // namespace kiln
