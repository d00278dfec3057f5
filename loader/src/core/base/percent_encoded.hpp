// SPDX-License-Identifier: Apache-2.0
//
// Percent-encoded: text as a part of a URL, of a form or of a file's name. Pure.
#pragma once

#include <string>
#include <string_view>

namespace kiln {

/// Letters, digits and "-._~" stay (RFC 3986, 2.3); each other byte becomes %XX, in upper case.
std::string percent_encoded(std::string_view text);

}  // namespace kiln
