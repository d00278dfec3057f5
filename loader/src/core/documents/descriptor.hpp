// SPDX-License-Identifier: Apache-2.0
//
// Descriptor: by what one document or layer names another: its type, digest and size. What is
// fetched, kept and verified is promised by one. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/digest.hpp"
#include "documents/json_fwd.hpp"

namespace kiln {

inline constexpr std::string_view kMediaTypeIndex = "application/vnd.oci.image.index.v1+json";
inline constexpr std::string_view kMediaTypeManifest = "application/vnd.oci.image.manifest.v1+json";
inline constexpr std::string_view kMediaTypeLayer = "application/vnd.oci.image.layer.v1.tar+zstd";
inline constexpr std::string_view kMediaTypeConfig = "application/vnd.kiln.variant.config.v1+json";

/// Larger documents are refused before they are read; OCI registries have the same limit.
inline constexpr std::uint64_t kMaxDocumentBytes = 4u << 20;

struct Descriptor {
  std::string media_type;
  Digest digest;
  std::uint64_t size = 0;
  bool operator==(const Descriptor&) const = default;
};
/// A manifest or an index, which a registry has apart from its blobs.
inline bool is_document(const Descriptor& descriptor) {
  return descriptor.media_type == kMediaTypeIndex || descriptor.media_type == kMediaTypeManifest;
}
Json to_json(const Descriptor& descriptor);
Descriptor parse_descriptor(const JsonView& json);
Digest parse_digest(const JsonView& json);

}  // namespace kiln
