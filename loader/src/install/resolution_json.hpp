// SPDX-License-Identifier: Apache-2.0
//
// ResolutionJson: a resolution as JSON, for `kiln resolve --json` and kiln_resolve. Pure.
#pragma once

#include "documents/host.hpp"
#include "documents/json_fwd.hpp"
#include "install/install.hpp"
#include "kiln/resolution.hpp"

namespace kiln {

Json to_json(const Resolution& resolution);
Json to_json(const Choice& choice);

/// The document with {"schema": "kiln.<kind>/1"} added.
Json with_schema(std::string_view kind, Json document);

}  // namespace kiln
