// SPDX-License-Identifier: Apache-2.0
//
// Warning: what a registry has to tell its users, in the Warning headers of its answers ("Warnings"
// of the OCI distribution specification 1.1). Part of http, under connection, which tells it the
// observer. Nothing is decided by it. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kiln {

/// The texts of a Warning header, or of several joined by ", ": those with code 299 and no agent,
/// as the specification wants them. Fit for a terminal. Of more than 4096 bytes nothing is read.
std::vector<std::string> parse_warnings(std::string_view header);

}  // namespace kiln
