// SPDX-License-Identifier: Apache-2.0
#include "install/advise.hpp"

#include <algorithm>

#include "settings/settings.hpp"

namespace kiln {

Advised advised(const std::vector<Advisory>& advisories, const std::string& package, int version,
                const Settings& settings) {
  Advised found;
  for (const Advisory& each : advisories) {
    if (!speaks_of(each, package, version)) continue;
    const std::vector<std::string>& accepted = settings.accepted_advisories;
    if (std::ranges::find(accepted, each.id) != accepted.end()) continue;
    const bool refuses = settings.advisories == Advice::kObeyed
                             ? each.refuses
                             : settings.advisories == Advice::kRefuses;
    (refuses ? found.refusing : found.warning).push_back(each);
  }
  return found;
}

std::vector<Advisory> warnings_of(const std::vector<Advisory>& advisories, const Variant& variant,
                                  const Resolution& resolution) {
  std::vector<const Gpu*> gpus;
  for (const Gpu& gpu : resolution.host.gpus) {
    const bool is_used = resolution.all_gpus || gpu.ordinal == resolution.device.ordinal;
    if (!variant.needs.is_cpu() && is_used) gpus.push_back(&gpu);
  }
  std::vector<Advisory> warnings;
  std::ranges::copy_if(advisories, std::back_inserter(warnings), [&](const Advisory& each) {
    return names_variant(each, variant.id, variant.manifest.digest) &&
           speaks_of_machine(each, gpus, resolution.host);
  });
  return warnings;
}

}  // namespace kiln
