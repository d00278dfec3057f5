// SPDX-License-Identifier: Apache-2.0
//
// Card: the page about a version that its author wrote in Markdown (CARD.md), carried with the
// version: it hangs on the index as a referrer, so that push, export and check take it along and
// no byte of a kernel changes. After publish; under the site, which shows it. It is for people: no
// program decides by it.
#pragma once

#include <filesystem>
#include <string>

#include "documents/descriptor.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/package_versions.hpp"
#include "registry/folder/submission.hpp"

namespace kiln::registry {

inline constexpr std::string_view kArtifactTypeCard = "application/vnd.kiln.card.v1";
inline constexpr const char* kCardNumber = "dev.kiln.card.number";  ///< the annotation
inline constexpr std::uint64_t kMaxCardBytes = std::uint64_t{1} << 20;

struct DescribedVersion {
  std::string name;
  int version = 0;
  Descriptor index;
  bool changed = false;  ///< false: this card was the one that counts
};

/// Hangs the card on the newest version, or on the one that is named. Each has a number, one more
/// than those before it, and the highest counts. An index that gains variants is a new index
/// and needs the card again. Throws kUsage for a file that cannot be read, is not UTF-8 or has more
/// than 1 MiB, and kNotFound for a version that is not there.
DescribedVersion describe(const std::filesystem::path& registry, const PackageVersions& versions,
                          const std::filesystem::path& card);

/// The card that counts, as Markdown; empty where the version has none.
std::string read_card(const Layout& layout, const Descriptor& index);

}  // namespace kiln::registry
