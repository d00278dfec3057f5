// SPDX-License-Identifier: Apache-2.0
//
// Manifest: the three documents of a published version, in the OCI image format, and Kiln's words
// in them. One definition for who writes them (build-matrix packs, registry publishes) and who
// reads them (the loader). Pure: bytes in, values out; the caller has verified the bytes against
// their descriptor.
//
//   index     geglu-mlp@1    image index; one descriptor a variant, selection facts as annotations
//   manifest  one variant    image manifest; names the config blob and the one tar.zst layer
//   config    one variant    what the archive holds: files, entry point, needs, compilers
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "documents/json_fwd.hpp"
#include "documents/target.hpp"

namespace kiln {

inline constexpr std::string_view kMediaTypeIndex = "application/vnd.oci.image.index.v1+json";
inline constexpr std::string_view kMediaTypeManifest = "application/vnd.oci.image.manifest.v1+json";
inline constexpr std::string_view kMediaTypeLayer = "application/vnd.oci.image.layer.v1.tar+zstd";
inline constexpr std::string_view kMediaTypeConfig = "application/vnd.kiln.variant.config.v1+json";
inline constexpr std::string_view kArtifactTypeIndex = "application/vnd.kiln.kernel.v1";
inline constexpr std::string_view kArtifactTypeVariant = "application/vnd.kiln.variant.v1";

/// Larger documents are refused before they are read; OCI registries have the same limit.
inline constexpr std::uint64_t kMaxDocumentBytes = 4u << 20;

struct Descriptor {
  std::string media_type;
  Digest digest;
  std::uint64_t size = 0;
  bool operator==(const Descriptor&) const = default;
};
Json to_json(const Descriptor& descriptor);
Descriptor parse_descriptor(const JsonView& json);

/// Who must be able to read it: checked before anything else in a document is looked at.
struct Requires {
  std::string min_loader = "0.1.0";  ///< lowest Kiln version
  int abi = 1;                       ///< KILN_ABI_MAJOR of the library inside
};

/// What a variant's `tested` says before any test record speaks of it.
inline constexpr std::string_view kUntested = "untested";

/// One line of an index: enough to choose, nothing fetched yet.
struct Variant {
  Descriptor manifest;
  std::string id;  ///< "cu12.9-sm_90a-x86_64", "cu11.8-compute_80-x86_64", "cpu-x86-64-v3"
  Requires requires_;
  Needs needs;
  std::string tested;  ///< "untested", or where and when its numeric tests passed
  /// A variant that needs a newer Kiln: its descriptor as JSON text, written back unchanged. Its
  /// needs are not known; resolve refuses it before it looks at them. Empty for every other one.
  std::string unread = {};
};

struct Index {
  std::string name;
  int version = 0;
  Requires requires_;
  std::vector<Variant> variants;  ///< in the publisher's order
};

/// Throws kUpgrade where the document needs a newer loader, else kIntegrity for what breaks the
/// format. A single variant that needs a newer loader stays in the list: resolve refuses it with
/// that reason.
Index parse_index(std::string_view bytes, std::string_view subject);
std::string serialize_index(const Index& index);

/// The annotations of a variant's descriptor, and back.
Json variant_annotations(const Variant& variant);
Variant parse_variant(const JsonView& descriptor);

struct VariantManifest {
  Descriptor config;
  Descriptor layer;
  std::uint64_t unpacked_size = 0;  ///< bytes of all files in the layer
};
VariantManifest parse_manifest(std::string_view bytes, std::string_view subject);
std::string serialize_manifest(const VariantManifest& manifest, std::string_view title);

struct ArchiveFile {
  std::string path;  ///< relative, '/'-separated, no "." or ".."
  Digest digest;
  std::uint64_t size = 0;
};

struct Config {
  std::string name;
  int version = 0;
  std::string variant;
  Requires requires_;
  Needs needs;
  std::vector<ArchiveFile> files;
  std::string library;   ///< which of the files is loaded
  std::string symbol;    ///< its entry point: "kiln_package_v1"
  std::string build_id;  ///< what the library's table must say
  std::string build;     ///< compilers and source digest, as JSON text; for people, or empty
};
Config parse_config(std::string_view bytes, std::string_view subject);

std::string serialize_config(const Config& config);

/// The file that is loaded. parse_config has seen to it that it is listed.
const ArchiveFile& library_file(const Config& config);

/// Throws kIntegrity if the config's facts are not the ones the index promised for this variant.
void check_agreement(const Index& index, const Variant& variant, const Config& config);

}  // namespace kiln
