// SPDX-License-Identifier: Apache-2.0
//
// Next index: a version as it will be once a submission joined it. Between submission and the
// writers: publish into a folder, push to a server. Append-only: a published variant keeps its
// digest for ever, and none is lost. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "documents/variant.hpp"
#include "registry/folder/submission.hpp"

namespace kiln::registry {

struct NextIndex {
  Index index;
  std::string bytes;
  Descriptor descriptor;
  std::vector<std::string> added;      ///< ids of variants that are new
  std::vector<std::string> retested;   ///< published before, with another `tested` now
  std::vector<std::string> unchanged;  ///< published before with the same bytes
};

/// The index of a version as `where` has it. kIntegrity for the index of another version, kUpgrade
/// if a newer Kiln wrote variants into it that this one cannot read and would lose.
Index read_published_index(const std::string& name, int version, const std::string& bytes,
                           const std::string& where);

/// Throws kConflict for other bytes under a published id, and for two variants that would rank
/// equal; kNotFound for a variant that no record speaks of and that is not among
/// `may_be_untested` (shell patterns of ids); kUsage for more than an index may hold.
NextIndex next_index(const Submission& submission, const std::optional<Index>& published,
                     const std::string& may_be_untested);

}  // namespace kiln::registry
