// SPDX-License-Identifier: Apache-2.0
//
// Repair: makes a cache whole again: removes what is not what its name says and fetches it anew, by
// digest, from the registry of the ref that needs it. Beside install, above cache and fetch. May
// run beside installs and loads: whoever meets a missing file fetches it as well.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "store/cache.hpp"
#include "store/registry.hpp"

namespace kiln {

/// One thing that was damaged.
struct Repaired {
  std::string subject;  ///< "geglu-mlp@1 cu12.9-sm_90a-x86_64", "ref", "folder"
  std::filesystem::path path;
  std::string problem;                   ///< what was found
  std::string done;                      ///< "fetched again", "removed: run 'kiln install …'"
  std::optional<ErrorCode> failed = {};  ///< why it is still not whole; `done` says the text
};

/// Empty if everything was intact. Where the settings say offline, nothing is fetched; what is
/// damaged is removed, and failed is kOffline. Throws kCache where the cache cannot be written.
std::vector<Repaired> repair(const Cache& cache, const Settings& settings,
                             const Patience& patience = {});

}  // namespace kiln
