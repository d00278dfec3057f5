// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a settings file: refused by name, or settings whose limits are within theirs and
// whose mirrors are registries or refused too.
#include "fuzz.hpp"
#include "settings/settings.hpp"
#include "store/registry.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln;
  fuzz::accepts({ErrorCode::kUsage}, [&] {
    const Settings settings = parse_settings(fuzz::text_of(data, size), "config.json");
    const Limits& limits = settings.limits;
    fuzz::require(limits.tries > 0 && limits.connect.count() > 0 && limits.stall.count() > 0 &&
                      limits.deadline.count() > 0 && limits.backoff.count() > 0,
                  "a limit is a positive number");
    for (const auto& [origin, mirrors] : settings.mirrors) {
      const std::string registry = canonical_registry(origin, settings);
      fuzz::require(canonical_registry(registry, settings) == registry,
                    "a canonical URL stays as it is");
      fuzz::require(mirrors_of(registry, settings).size() <= mirrors.size(), "a mirror is listed");
    }
  });
  return 0;
}
