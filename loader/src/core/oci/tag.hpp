// SPDX-License-Identifier: Apache-2.0
//
// Tag: the names that a registry has for its documents, and which of them Kiln gives: "1" for the
// index of version 1, "1-cu12.9-sm_90a-x86_64" for one variant of it. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"

namespace kiln {

/// Where a registry has its signed metadata, next to the packages (trust/repository_source.hpp).
inline constexpr const char* kTrustRepository = "kiln.tuf";
inline constexpr const char* kTrustTag = "latest";

/// Whether OCI allows this as a tag: [A-Za-z0-9_][A-Za-z0-9._-]{0,127}. Safe as a file name.
bool is_tag(std::string_view text);

std::string variant_tag(int version, std::string_view id);

/// "sha256-<hex>": names the list of a document's referrers, where a registry has no request for
/// it, in a folder and in a bundle.
std::string referrers_tag(const Digest& subject);
/// The document that the tag is for; nothing for another tag.
std::optional<Digest> subject_of_tag(std::string_view tag);

/// The version whose index has this tag; 0 for a variant's tag, or for somebody else's.
int version_of_tag(std::string_view tag);

/// The versions among these tags, ascending, each once.
std::vector<int> versions_among(const std::vector<std::string>& tags);

}  // namespace kiln
