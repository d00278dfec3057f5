// SPDX-License-Identifier: Apache-2.0
//
// Challenge: what a WWW-Authenticate header asks for (RFC 9110, section 11). Between the 401 of a
// transfer and auth, which answers it. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kiln {

struct Challenge {
  std::string scheme;                             ///< lower case: "bearer", "basic"
  std::string token = {};                         ///< the token68 form, which has no parameters
  std::map<std::string, std::string> parameters;  ///< names in lower case, values unquoted

  std::string parameter(const std::string& name) const;  ///< empty if there is none
  bool operator==(const Challenge&) const = default;
};

/// The challenges of a header, or of several joined by ", ", in their order. Throws kNetwork for
/// what is not such a list: a broken quote, a control byte, a parameter twice or outside of a
/// challenge, more than 8 KiB. `subject` names who sent it.
std::vector<Challenge> parse_challenges(std::string_view header, const std::string& subject);

}  // namespace kiln
