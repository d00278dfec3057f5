// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as the facts of a machine: refused by name, or a machine that writes back.
#include "documents/host.hpp"
#include "fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln;
  std::string text;
  const bool read = fuzz::accepts({ErrorCode::kIntegrity, ErrorCode::kUpgrade}, [&] {
    text = serialize_host(parse_host(fuzz::text_of(data, size), "x"));
  });
  if (!read) return 0;
  fuzz::round_trip(
      text, [](const std::string& again) { return parse_host(again, "again"); },
      [](const auto& value) { return serialize_host(value); });
  return 0;
}
