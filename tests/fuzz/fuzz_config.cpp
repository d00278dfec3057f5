// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a variant's config: refused by name, or a config that writes back.
#include "documents/manifest.hpp"
#include "fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln;
  std::string text;
  const bool read = fuzz::accepts({ErrorCode::kIntegrity, ErrorCode::kUpgrade}, [&] {
    text = serialize_config(parse_config(fuzz::text_of(data, size), "x"));
  });
  if (!read) return 0;
  fuzz::round_trip(
      text, [](const std::string& again) { return parse_config(again, "again"); },
      [](const auto& value) { return serialize_config(value); });
  return 0;
}
