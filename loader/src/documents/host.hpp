// SPDX-License-Identifier: Apache-2.0
//
// Host: the facts of a machine as JSON, for the commands that show them; target.hpp declares the
// document. Between json and target. Pure.
#pragma once

#include <string>
#include <vector>

#include "documents/json_fwd.hpp"
#include "documents/manifest.hpp"
#include "kiln/target.hpp"

namespace kiln {

Json to_json(const Host& host);

/// Sonames that variants for this machine's architecture look up and of which the facts say
/// nothing, neither present nor absent. Sorted.
std::vector<std::string> unknown_libraries(const Host& host, const Index& index);

}  // namespace kiln
