// SPDX-License-Identifier: Apache-2.0
//
// What a registry tells its users, out of its Warning headers.
#include <doctest/doctest.h>

#include "http/warning.hpp"

using kiln::parse_warnings;
using Texts = std::vector<std::string>;

TEST_CASE("warning: the texts of code 299 without an agent, fit for a terminal") {
  const struct {
    std::string header;
    Texts texts;
  } cases[] = {
      {R"(299 - "it moves, soon")", {"it moves, soon"}},
      {R"(299 - "a", 299 - "b")", {"a", "b"}},
      {R"(299 - "a" "Thu, 01 Jan 2026 00:00:00 GMT", 299 - "b")", {"a", "b"}},
      {R"(299 - "a \"b\" \\")", {R"(a "b" \)"}},
      {R"(110 - "stale", 299 proxy "p", 299 - "a")", {"a"}},
      {"299 - \"\x1b[31mred\"", {"\\x1b[31mred"}},
      {R"(299 - "")", {}},
      {R"(299 - "endless)", {}},
      {R"(299 - )", {}},
      {R"(299)", {}},
      {R"(", 299 - "a")", {}},
      {",,,", {}},
      {"", {}},
      {"299 - \"" + std::string(4096, 'a') + "\"", {}},
  };
  for (const auto& each : cases) {
    CAPTURE(each.header);
    CHECK(parse_warnings(each.header) == each.texts);
  }
}
