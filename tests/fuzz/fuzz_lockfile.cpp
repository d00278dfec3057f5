// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a lock file: refused by name, or a lock that writes back.
#include "documents/lockfile.hpp"
#include "fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln;
  std::string text;
  const bool read = fuzz::accepts({ErrorCode::kLock, ErrorCode::kUpgrade}, [&] {
    text = serialize_lockfile(parse_lockfile(fuzz::text_of(data, size), "x"));
  });
  if (!read) return 0;
  fuzz::round_trip(
      text, [](const std::string& again) { return parse_lockfile(again, "again"); },
      [](const auto& value) { return serialize_lockfile(value); });
  return 0;
}
