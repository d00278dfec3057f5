// SPDX-License-Identifier: Apache-2.0
//
// RepositorySource: metadata as one artifact of an OCI registry, in the repository kiln.tuf next to
// the packages, so that whatever carries packages carries their trust. Under updater. For one
// thread.
//
//   tag latest    an image manifest with a layer for each file, whose title is the file's name; the
//                 bytes of a small one may lie in its descriptor ("data"), which saves a request
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "http/retry.hpp"
#include "oci/tag.hpp"
#include "store/content.hpp"
#include "trust/updater.hpp"

namespace kiln::trust {

using kiln::kTrustRepository;
using kiln::kTrustTag;
inline constexpr std::string_view kArtifactTypeTrust = "application/vnd.kiln.tuf.v1";
inline constexpr std::string_view kMediaTypeTrust = "application/vnd.tuf.metadata+json";

struct MetadataLayer {
  Descriptor descriptor;
  std::string data;  ///< its bytes, where they are inside; empty: they are a blob
};

/// All files together have no more bytes: some 500,000 versions in documents of many publishers.
inline constexpr std::uint64_t kMaxTrustBytes = std::uint64_t{256} << 20;

/// The manifest's layers by title, and its config's descriptor under "". Throws kIntegrity, also
/// for more than kMaxTrustBytes.
std::map<std::string, MetadataLayer> parse_trust_manifest(std::string_view bytes,
                                                          const std::string& subject);

class RepositorySource final : public MetadataSource {
 public:
  /// `repository` outlives it. Asks for the manifest when it is first needed.
  RepositorySource(const Repository& repository, Patience patience)
      : repository_(repository), patience_(std::move(patience)) {}

  std::optional<std::string> fetch(const std::string& file, std::size_t most) const override;

 private:
  const Repository& repository_;
  Patience patience_;
  mutable std::optional<std::map<std::string, MetadataLayer>> layers_;
};

}  // namespace kiln::trust
