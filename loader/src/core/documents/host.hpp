// SPDX-License-Identifier: Apache-2.0
//
// Host: the facts of a machine as a document, schema "kiln.host/1", to resolve for a machine that
// is elsewhere. Between json and target. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "documents/json_fwd.hpp"
#include "kiln/host.hpp"

namespace kiln {

struct Index;  // documents/variant.hpp

/// `kiln host --json` writes the document, --host reads it. `origin` names it in errors and in
/// tables. Throws kIntegrity for what breaks the format, kUpgrade for a document of a newer Kiln.
Host parse_host(std::string_view document, std::string_view origin);
std::string serialize_host(const Host& host);

Json to_json(const Host& host);

/// Sonames that variants for this machine's architecture look up and on which the facts say
/// nothing, neither present nor absent. Sorted.
std::vector<std::string> unknown_libraries(const Host& host, const Index& index);

}  // namespace kiln
