// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a WWW-Authenticate header: refused by name, or challenges fit to be acted on.
#include "fuzz.hpp"
#include "http/challenge.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln;
  fuzz::accepts({ErrorCode::kNetwork}, [&] {
    for (const Challenge& each : parse_challenges(fuzz::text_of(data, size), "https://x")) {
      fuzz::require(!each.scheme.empty(), "a challenge has a scheme");
      fuzz::require(each.token.empty() || each.parameters.empty(), "a token has no parameters");
      for (const auto& [name, value] : each.parameters) {
        const bool clean = std::none_of(value.begin(), value.end(),
                                        [](char c) { return c == '\r' || c == '\n' || c == '\0'; });
        fuzz::require(!name.empty() && clean, "a value has no line break in it");
      }
    }
  });
  return 0;
}
