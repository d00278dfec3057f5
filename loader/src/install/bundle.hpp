// SPDX-License-Identifier: Apache-2.0
//
// Bundle: kernels in one file, for machines without a network. An OCI archive (an OCI image layout
// in an uncompressed tar: skopeo reads and copies it), the same bytes from the same state: sorted
// names, time 0, user 0. After pull; `fetch` reads one where a registry or Request::from names a
// file. Safe from several threads.
//
//   index.json     "geglu-mlp:1" is the version's image index, byte for byte the registry's, so its
//                  digest is the one that everyone knows; "geglu-mlp:1-<variant>" is each variant
//                  that is inside. The index lists all variants, inside or not.
//   blobs/sha256/  indexes, and of each variant inside manifest, config and layer
//
// A bundle vouches for nothing: what is installed from it is kept under the registry that this
// machine would have asked, and where there is a lock file, the lock's digests decide.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "documents/manifest.hpp"
#include "kiln/kernel.hpp"

namespace kiln {

/// What goes in of one kernel.
struct BundlePart {
  std::string name;
  Request request;                    ///< and the machine that resolve chooses for
  bool all_variants = false;          ///< in place of the one that resolve chooses
  std::vector<std::string> variants;  ///< in place of it: these ids
};

struct BundledKernel {
  std::string name;
  int version = 0;
  Descriptor index;
  std::vector<std::string> variants;  ///< those that are inside
};

/// Fetches what is not in the cache, verifies all of it and writes the file, whole or not at all.
/// Throws what install throws; kNotFound for a variant that the version does not have.
std::vector<BundledKernel> create_bundle(const std::vector<BundlePart>& parts,
                                         const std::filesystem::path& file);

/// Throws kNotFound if there is no such file, kIntegrity if it is no such bundle.
std::vector<BundledKernel> bundle_contents(const std::filesystem::path& file);

}  // namespace kiln
