// SPDX-License-Identifier: Apache-2.0
//
// Canonical: the one spelling of a JSON value that signatures are made over, as TUF's tools have
// it: no spaces, keys sorted by code point, and in strings only \" and \\ escaped. Pure.
#pragma once

#include <string>

#include "documents/json_fwd.hpp"

namespace kiln::trust {

/// Throws kTrust for a number that is not an integer: it has no canonical spelling.
std::string canonical_json(const Json& value);

}  // namespace kiln::trust
