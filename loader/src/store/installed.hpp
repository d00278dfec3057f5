// SPDX-License-Identifier: Apache-2.0
//
// Installed: what the cache holds, variant by variant: everything from a manifest to its unpacked
// folder is there. Before it: cache; reads the cache alone. Safe from several threads and processes
// at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "documents/variant.hpp"
#include "store/cache.hpp"

namespace kiln {

/// One variant in the cache, complete.
struct InstalledVariant {
  Ref ref;
  Variant variant;
  VariantManifest manifest;
  Config config;
  std::filesystem::path folder;
  std::filesystem::path library;
  std::uint64_t bytes = 0;  ///< of its files, unpacked
};

/// Told of a version whose ref or documents are damaged, which the list leaves out.
using DamagedVersion =
    std::function<void(const std::string& name, int version, const Error& error)>;

/// Everything installed, by registry, package, version and index order. Reads and hashes documents,
/// not libraries. Throws kCache for what may not be read. Its
/// caller holds use(): during a gc, what is being removed would look damaged.
std::vector<InstalledVariant> list_installed(const Cache& cache,
                                             const DamagedVersion& damaged = {});

}  // namespace kiln
