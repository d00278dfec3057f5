// SPDX-License-Identifier: Apache-2.0
//
// Advice: one advisory about one version, as `kiln audit` and `kiln info` say it. Before it: the
// signed metadata and the settings; after it: what is printed. Pure.
#pragma once

#include <map>
#include <string>

#include "documents/advisory.hpp"
#include "documents/json.hpp"

namespace kiln {
struct Settings;  // settings/settings.hpp
}

namespace kiln::cli {

/// Of a version's variants, the digests of their manifests by id.
using VariantDigests = std::map<std::string, Digest>;

/// Null where it speaks of none of these variants. Else id, text, link, scope, variants, and as
/// "action" what it does here: "refuses", "warns", or "accepted" by the settings.
Json advice_of(const Advisory& advisory, const std::string& package, int version,
               const VariantDigests& variants, const Settings& settings);

}  // namespace kiln::cli
