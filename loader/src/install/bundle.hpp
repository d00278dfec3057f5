// SPDX-License-Identifier: Apache-2.0
//
// Bundle: makes the file that store/bundle.hpp reads: kernels for machines without a network. The
// same bytes from the same state: sorted names, time 0, user 0. Around install. Safe from several
// threads.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kiln/host.hpp"
#include "kiln/request.hpp"
#include "store/bundle.hpp"

namespace kiln {

/// What goes in of one kernel.
struct BundlePart {
  std::string name;
  Request request;
  std::optional<Host> host = {};      ///< the machine that resolve chooses for; else this one
  bool all_variants = false;          ///< in place of the one that resolve chooses
  std::vector<std::string> variants;  ///< in place of it: these ids
};

/// Fetches what is not in the cache, verifies all of it and writes the file, whole or not at all.
/// Throws what install throws; kNotFound for a variant that the version does not have.
std::vector<BundledKernel> create_bundle(const std::vector<BundlePart>& parts,
                                         const std::filesystem::path& file);

}  // namespace kiln
