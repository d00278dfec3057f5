// SPDX-License-Identifier: Apache-2.0
//
// Review: one signer's part in a draft of a registry's metadata, away from the registry: what it
// would change, and a signature under it. Between sign, which made the draft, and sign, which takes
// it back.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "registry/trust/draft.hpp"
#include "registry/trust/keys.hpp"

namespace kiln::registry {

struct Reviewed {
  std::vector<std::string> changes;  ///< against what clients see, one a line
  std::vector<Missing> missing;
};

/// Signs what the keys may sign, in the file; without keys it only looks. `roots`: those that the
/// signer has, from another source than the draft. The draft also says what clients see now; that
/// counts only as far as it is signed under these roots, and all else is shown as new. Throws
/// kUsage without a root, kTrust for a draft that does not follow from it, and where no key may
/// sign.
Reviewed review_draft(const std::filesystem::path& file, const std::vector<PrivateKey>& keys,
                      const std::vector<std::filesystem::path>& roots);

}  // namespace kiln::registry
