// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/verbs/advice.hpp"

#include <vector>

#include "install/advise.hpp"

namespace kiln::cli {

Json advice_of(const Advisory& advisory, const std::string& package, int version,
               const VariantDigests& variants, const Settings& settings) {
  std::vector<std::string> named;
  for (const auto& [id, digest] : variants) {
    if (names_variant(advisory, id, digest)) named.push_back(id);
  }
  if (named.empty() || !speaks_of(advisory, package, version)) return nullptr;
  const Advised effect = advised({advisory}, package, version, settings);
  const char* const action = !effect.refusing.empty()  ? "refuses"
                             : !effect.warning.empty() ? "warns"
                                                       : "accepted";
  return {
      {"id", advisory.id},           {"action", action},
      {"text", advisory.text},       {"link", advisory.link.empty() ? Json() : Json(advisory.link)},
      {"scope", scope_of(advisory)}, {"variants", named}};
}

}  // namespace kiln::cli
