// SPDX-License-Identifier: Apache-2.0
//
// Manifest: reads and writes the three documents of a published version, in the OCI image format,
// with Kiln's words in them; variant.hpp has what they say. One definition for the writers
// (build-matrix packs, registry publishes) and the reader (the loader). Pure: bytes in, values out;
// the caller has verified the bytes against their descriptor.
//
//   index     geglu-mlp@1    image index; one descriptor a variant, selection facts as annotations
//   manifest  one variant    image manifest; names the config blob, the tar.zst layer with the
//                            library and, where the package has one, the dev layer
//   config    one variant    what the layers hold: files, entry point, needs, compilers
//
// An index also carries the text of each small manifest and config, as annotations. OCI has a field
// for that, "data", which skopeo 1.9 drops when it copies an index; the index's digest changes
// then.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "documents/json_fwd.hpp"
#include "documents/variant.hpp"

namespace kiln {

inline constexpr std::string_view kArtifactTypeIndex = "application/vnd.kiln.kernel.v1";
inline constexpr std::string_view kArtifactTypeVariant = "application/vnd.kiln.variant.v1";

/// The carried texts are four fifths of an index's bytes, and only a reader that lacks a document
/// needs them. An index that was read without them is not to be written again.
enum class CarriedTexts { kRead, kLeft };

/// Throws kUpgrade where the document needs a newer loader, else kIntegrity for what breaks the
/// format. A single variant that needs a newer loader stays in the list: resolve refuses it with
/// that reason.
Index parse_index(std::string_view bytes, std::string_view subject,
                  CarriedTexts texts = CarriedTexts::kRead);
std::string serialize_index(const Index& index);

/// A variant's descriptor in an index, and back; its annotations state what it needs.
Json variant_descriptor(const Variant& variant);
Json variant_annotations(const Variant& variant);
Variant parse_variant(const JsonView& descriptor);

/// Larger documents are fetched when they are needed; smaller ones are carried in the index.
inline constexpr std::size_t kMaxCarriedBytes = 8192;

VariantManifest parse_manifest(std::string_view bytes, std::string_view subject);
/// `title`: the name of the archive as a file, "geglu-mlp-1-cpu-x86-64-v3.tar.zst".
std::string serialize_manifest(const VariantManifest& manifest, std::string_view title);

Config parse_config(std::string_view bytes, std::string_view subject);

std::string serialize_config(const Config& config);

/// Throws kIntegrity if the config's facts are not the ones the index promised for this variant.
void check_agreement(const Index& index, const Variant& variant, const Config& config);

}  // namespace kiln
