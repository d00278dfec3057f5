// SPDX-License-Identifier: Apache-2.0
//
// Challenge: the headers that registries send, and those that nobody should.
#include "http/challenge.hpp"

#include <doctest/doctest.h>

#include "kiln/error.hpp"

namespace kiln {
namespace {

using Challenges = std::vector<Challenge>;

TEST_CASE("challenge: what registries send is read") {
  const struct {
    std::string header;
    Challenges expected;
  } rows[] = {
      {"", {}},
      {" , ,", {}},
      {R"(Basic realm="Registry Realm")", {{"basic", "", {{"realm", "Registry Realm"}}}}},
      {R"(Bearer realm="https://auth.example.org/token",service="example.org",scope="repository:a/b:pull")",
       {{"bearer",
         "",
         {{"realm", "https://auth.example.org/token"},
          {"service", "example.org"},
          {"scope", "repository:a/b:pull"}}}}},
      {R"(BEARER Realm = "x" , SERVICE=y)", {{"bearer", "", {{"realm", "x"}, {"service", "y"}}}}},
      {R"(Bearer realm="a,b=c \"d\" \\",error="insufficient_scope")",
       {{"bearer", "", {{"realm", R"(a,b=c "d" \)"}, {"error", "insufficient_scope"}}}}},
      {R"(Bearer realm="a", Basic realm="b")",
       {{"bearer", "", {{"realm", "a"}}}, {"basic", "", {{"realm", "b"}}}}},
      {R"(Negotiate, Basic realm="b", Bearer)",
       {{"negotiate", "", {}}, {"basic", "", {{"realm", "b"}}}, {"bearer", "", {}}}},
      {R"(Negotiate YII+/-._~==, Basic realm=b)",
       {{"negotiate", "YII+/-._~==", {}}, {"basic", "", {{"realm", "b"}}}}},
      {R"(Bearer realm="")", {{"bearer", "", {{"realm", ""}}}}},
      {R"(Bearer ,, realm=a,, ,service=b,)", {{"bearer", "", {{"realm", "a"}, {"service", "b"}}}}},
      {"Bearer realm=\"tab\tand \xc3\xa9\"", {{"bearer", "", {{"realm", "tab\tand \xc3\xa9"}}}}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.header);
    const Challenges found = parse_challenges(row.header, "https://example.org");
    CHECK(found == row.expected);
  }
  CHECK(parse_challenges("Bearer realm=a", "x").front().parameter("realm") == "a");
  CHECK(parse_challenges("Bearer realm=a", "x").front().parameter("scope").empty());
}

TEST_CASE("challenge: what is no list of challenges is refused, and not repeated") {
  const struct {
    std::string header;
    std::string word;
  } rows[] = {
      {R"(realm="x")", "outside of a challenge"},
      {R"(Bearer realm="x)", "quote that does not end"},
      {R"(Bearer realm="x\)", "quote that does not end"},
      {R"(Bearer realm="x" service="y")", "no comma"},
      {R"(Bearer realm="x"y)", "no comma"},
      {R"(Bearer realm=x y)", "no comma"},
      {R"(Bearer realm="x",realm="y")", "\"realm\" twice"},
      {R"(Bearer realm="x",REALM="y")", "\"realm\" twice"},
      {R"(Bearer realm)"
       "\x01"
       R"(="y")",
       "neither parameters"},
      {std::string("Bearer realm=\"\0\"", 16), "control byte"},
      {"Bearer realm=\"a\r\nb\"", "control byte"},
      {"Bearer realm=\"\x7f\"", "control byte"},
      {R"(Bearer Basic realm="x")", "neither parameters"},
      {R"(Negotiate abc=, realm="x")", "outside of a challenge"},
      {R"("Bearer")", "no scheme"},
      {R"(=)", "no scheme"},
      {"\xff\xfe", "no scheme"},
      {"<html>secret</html>", "no scheme"},
      {"Bearer realm=\"" + std::string(9000, 'x') + "\"", "9015 bytes"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.header);
    std::string text;
    try {
      parse_challenges(row.header, "https://example.org/v2/x");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kNetwork);
      text = error.what();
    }
    CHECK(text.find("of https://example.org/v2/x") != std::string::npos);
    CHECK(text.find(row.word) != std::string::npos);
    CHECK(text.find("secret") == std::string::npos);
    CHECK(text.size() < 300);
  }
}

}  // namespace
}  // namespace kiln
