// SPDX-License-Identifier: Apache-2.0
//
// Refusal: what a registry says of itself where it refuses: the error document of the distribution
// API. Under auth and connection, for their messages; nothing is decided by it. Pure.
#pragma once

#include <string>

#include "http/transfer.hpp"

namespace kiln {

/// " (TAG_INVALID: the tag '1' is immutable)": the first error's code and message, fit for a
/// terminal. Empty for a body of another shape.
std::string words_of_refusal(const HttpAnswer& answer);

}  // namespace kiln
