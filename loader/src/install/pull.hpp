// SPDX-License-Identifier: Apache-2.0
//
// Pull: what one variant is made of (manifest, config, layer), out of the cache or else out of the
// registry into it, verified either way. After select; what install, lock and bundle share. Their
// caller holds Cache::use_to_write(). A Selecting is used by one thread at a time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "install/select.hpp"

namespace kiln {

/// "geglu-mlp@1", and "geglu-mlp@1 cpu-x86-64-v3".
std::string subject_of(const Selecting& self);
std::string subject_of(const Selecting& self, const Variant& variant);

/// A document of the cache. While refreshing, a damaged one is removed and counts as missing.
std::optional<std::string> read_cached(const Selecting& self, const Descriptor& descriptor,
                                       const std::string& what);

/// Manifest and config of a variant of the selected index, which agree with it and, where there is
/// one, with the lock file (kLock names both sides).
struct Pulled {
  VariantManifest manifest;
  Config config;
};
Pulled pull_documents(Selecting& self, const Variant& variant);

/// The layer in the cache, its bytes verified just now whether they were fetched or found.
std::filesystem::path pull_layer(Selecting& self, const Descriptor& layer, const Variant& variant);

}  // namespace kiln
