// SPDX-License-Identifier: Apache-2.0
//
// Referrers: what hangs on a version's index in a registry folder. Under attest, which adds to
// them, and push, export and check, which carry them on. A folder keeps their list as the tag
// sha256-<hex>, as a server without the request for it does.
#pragma once

#include <string>
#include <vector>

#include "oci/referrers.hpp"
#include "registry/folder/layout.hpp"

namespace kiln::registry {

/// One manifest that hangs on an index, and the blobs that it names.
struct HungReferrer {
  ListedReferrer listed;
  std::string manifest;
  std::vector<Descriptor> blobs;  ///< config and layers, each once
};

/// The referrers of an index, each checked: kIntegrity for a blob that is not as promised, and for
/// a manifest with another subject. Empty where nothing hangs on it.
std::vector<HungReferrer> read_referrers(const Layout& layout, const Descriptor& index);

/// Adds referrers to the list; their blobs are in the folder already. The layout's lock is
/// held. Writes nothing where all of them are listed.
void add_referrers(const Layout& layout, const Descriptor& index, const ReferrerList& added);

}  // namespace kiln::registry
