// SPDX-License-Identifier: Apache-2.0
//
// Advise: which advisories of a registry's signed metadata count here, as the settings say, and
// which of them speak of a choice. Between vouch, which has them, and choose, whose resolve passes
// over what they refuse. Pure.
#pragma once

#include <string>
#include <vector>

#include "documents/advisory.hpp"
#include "kiln/resolution.hpp"

namespace kiln {

struct Settings;  // settings/settings.hpp

/// Those that may speak of some variant of one version.
struct Advised {
  std::vector<Advisory> refusing;
  std::vector<Advisory> warning;
};

Advised advised(const std::vector<Advisory>& advisories, const std::string& package, int version,
                const Settings& settings);

/// Those that speak of this variant on the machine, and the device, that it was chosen for.
std::vector<Advisory> warnings_of(const std::vector<Advisory>& advisories, const Variant& variant,
                                  const Resolution& resolution);

}  // namespace kiln
