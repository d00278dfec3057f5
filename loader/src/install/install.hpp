// SPDX-License-Identifier: Apache-2.0
//
// Install: the pipeline up to a verified library on disk: probe -> index -> resolve -> fetch ->
// verify -> cache -> unpack. What `kiln resolve` and `kiln install` do, and get_kernel before it
// loads. Safe from several threads and processes at once.
//
// The cache answers where it can: a version whose index is there is not asked for again, and with
// everything there nothing is fetched and nothing is written. If nothing in a cached index fits
// this machine, the registry is asked once more: variants may have been added to the version.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "documents/manifest.hpp"
#include "kiln/kernel.hpp"
#include "kiln/resolve.hpp"
#include "store/cache.hpp"
#include "store/fetch.hpp"

namespace kiln {

/// An index and what resolve made of it.
struct Selected {
  std::string registry;   ///< canonical
  Descriptor descriptor;  ///< of the index
  Index index;
  Resolution resolution;  ///< resolution.chosen may be empty
  int requests = 0;
  std::uint64_t bytes_fetched = 0;

  /// resolution.explain(), the hint, and, asked of the registry, which other published version has
  /// a build that fits: the text of the kNoVariant error. Set where nothing was chosen.
  std::string no_variant;

  /// What nothing fitted for, before a fallback of the request was taken.
  std::vector<Resolution> refused;
};

/// Probes this machine, reads the index and resolves. Does not throw when nothing fits. Throws
/// kUsage (no version, a name that cannot be), kNotFound, kNetwork, kIntegrity, kUpgrade, kCache.
Selected select(std::string_view name, const Request& request);

/// The versions that a registry has published, ascending; offline, those that the cache knows of.
/// Never empty: there being none is kNotFound, or kOffline.
std::vector<int> known_versions(std::string_view name, const Request& request);

struct Installed {
  Selected selected;
  Variant variant;
  Config config;
  std::filesystem::path folder;   ///< the unpacked files
  std::filesystem::path library;  ///< the one that get_kernel loads
  int requests = 0;               ///< HTTP requests (files read, of a folder) of the whole install
  std::uint64_t bytes_fetched = 0;
  FileLock lease;  ///< while it lives, gc keeps the variant
};

/// The whole pipeline but the load. On a warm cache it reads four small documents and hashes them;
/// the library itself is hashed when it is loaded, or by verify_installed. Throws what select
/// throws, and kNoVariant.
Installed install(std::string_view name, const Request& request);

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

/// Everything installed, by registry, package, version and index order. Reads and hashes documents,
/// not libraries. A ref whose documents are damaged is left out; verify_installed reports it.
std::vector<InstalledVariant> list_installed(const Cache& cache);

/// One file of the cache, hashed.
struct CheckedFile {
  std::string subject;  ///< "geglu-mlp@1 cu12.9-sm_90a-x86_64"
  std::filesystem::path file;
  std::string problem;  ///< empty: intact
};

/// Hashes every file behind the refs: indexes, manifests, configs, layers, unpacked files. Empty
/// name: all packages, and the blobs that no ref names; version 0: all versions. Throws nothing for
/// damage: it is the answer.
std::vector<CheckedFile> verify_installed(const Cache& cache, std::string_view name = {},
                                          int version = 0);

}  // namespace kiln
