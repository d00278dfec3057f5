// SPDX-License-Identifier: Apache-2.0
//
// Output: the result of a command on stdout, as JSON documents with a versioned "schema".
#pragma once

#include <string_view>

#include "documents/json_fwd.hpp"
#include "install/install.hpp"
#include "install/trace.hpp"

namespace kiln::cli {

Json to_json(const Installed& installed);

/// Prints one document, indented, with {"schema": "kiln.<kind>/1"} added.
void print_json(std::string_view kind, Json document);

}  // namespace kiln::cli
