// SPDX-License-Identifier: Apache-2.0
//
// Bundle: kernels in one file, for machines without a network. An OCI archive (an OCI image layout
// in an uncompressed tar: skopeo reads and copies it). install/bundle.hpp makes one;
// open_repository reads one where a registry or Request::from names a file.
//
//   index.json     "geglu-mlp:1" is the version's image index, byte for byte the registry's, so its
//                  digest is the one that everyone knows; "geglu-mlp:1-<variant>" is each variant
//                  that is inside. The index lists all variants, inside or not.
//   blobs/sha256/  indexes, and of each variant inside manifest, config and layer
//
// "geglu-mlp:sha256-<hex>" lists what was signed about that index (oci/referrers.hpp), where there
// is such. Of a signed registry "kiln.tuf:latest" is its trust metadata
// (trust/repository_source.hpp), which vouches for the versions here as it does there. The bundle
// itself vouches for nothing: what is installed from it is kept under the registry that this
// machine would have asked, and where there is a lock file, the lock's digests decide. Which
// registry it came from stands at the version's tag ("dev.kiln.registry"), so that an install
// needs no option for it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "documents/descriptor.hpp"

namespace kiln {

struct BundledKernel {
  std::string name;
  int version = 0;
  Descriptor index;
  std::vector<std::string> variants;  ///< those that are inside
  std::string registry = {};  ///< the registry that the bundle says it is from; may be empty
  bool is_signed = false;     ///< the bundle has signed metadata, which may vouch for it
  /// Of one that is being made: why it has none of a signed registry, so that the lock file alone
  /// vouches for this kernel there.
  std::string left_out = {};
};

/// Throws kNotFound if the file is missing, kIntegrity if it is not a bundle.
std::vector<BundledKernel> bundle_contents(const std::filesystem::path& file);

}  // namespace kiln
