// SPDX-License-Identifier: Apache-2.0
//
// Explain: what each rule found for one variant, and why it stands where it does: what
// `kiln resolve --explain` prints. After resolve, for people who want more than its table. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "resolve/resolve.hpp"

namespace kiln {

struct RuleOutcome {
  Refusal rule = Refusal::kNone;
  bool holds = false;
  std::string detail;  ///< what is needed and what was found
  bool asked = true;   ///< false: a need of GPU code that nothing was held against, without a GPU
};

struct Explanation {
  std::string variant;
  std::size_t rank = 0;
  std::string verdict;  ///< "chosen", "fits", or the word of the first rule it breaks
  std::vector<RuleOutcome>
      rules;           ///< in their order; a variant for a newer Kiln has only the first
  std::string ranked;  ///< why the one before it is before it; empty for the first

  std::string text() const;
};

/// Of one variant, or with an empty id of all, best first. `resolution` is what resolve made of the
/// same index and selection. Throws kUsage for an id that the index does not have.
std::vector<Explanation> explain(const Resolution& resolution, const Index& index,
                                 const Selection& selection, std::string_view variant);

}  // namespace kiln
