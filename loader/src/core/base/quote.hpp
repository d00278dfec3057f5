// SPDX-License-Identifier: Apache-2.0
//
// Quote: text that came from outside, made fit for an error message and for a terminal. Pure.
#pragma once

#include <string>
#include <string_view>

namespace kiln {

/// Two lower-case digits for each byte, each byte's after `before`.
std::string hex_of(std::string_view bytes, std::string_view before = "");

/// In double quotes; bytes that are not printable ASCII as \xNN; cut after 80 bytes with "...".
std::string quote(std::string_view text);

/// The text as a terminal may have it: control characters (C0, DEL, C1), those that turn the
/// direction of writing, and bytes that are not UTF-8 become \xNN, each of their bytes. The rest,
/// letters of all languages included, stays. Text that is on one line stays on one line.
std::string printable(std::string_view text);

/// The same for text of several lines: newlines stay.
std::string printable_lines(std::string_view text);

/// Whether JSON can hold the text.
bool is_utf8(std::string_view text);

}  // namespace kiln
