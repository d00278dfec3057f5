// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a variant's manifest: refused by name, or a manifest that writes back.
#include "documents/manifest.hpp"
#include "fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln;
  const auto serialize = [](const VariantManifest& manifest) {
    return serialize_manifest(manifest, "x.tar.zst");
  };
  std::string text;
  const bool read = fuzz::accepts({ErrorCode::kIntegrity, ErrorCode::kUpgrade}, [&] {
    text = serialize(parse_manifest(fuzz::text_of(data, size), "manifest of x"));
  });
  if (!read) return 0;
  fuzz::round_trip(
      text, [](const std::string& again) { return parse_manifest(again, "again"); }, serialize);
  return 0;
}
