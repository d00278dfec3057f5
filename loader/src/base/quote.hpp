// SPDX-License-Identifier: Apache-2.0
//
// Quote: text that came from outside, made fit for an error message. Pure.
#pragma once

#include <string>
#include <string_view>

namespace kiln {

/// In double quotes; bytes that are not printable ASCII as \xNN; cut after 80 bytes with "...".
std::string quote(std::string_view text);

}  // namespace kiln
