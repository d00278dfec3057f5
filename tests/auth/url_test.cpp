// SPDX-License-Identifier: Apache-2.0
//
// Where a server may send Kiln on, and what an upload's address becomes.
#include "http/url.hpp"

#include <doctest/doctest.h>

#include <clocale>
#include <optional>
#include <string>
#include <vector>

#include "base/ascii.hpp"
#include "base/size.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

/// Nothing where it is refused.
std::optional<std::string> follow(const std::string& base, const std::string& reference) {
  try {
    return follow_reference(base, reference, {"mirror.lan:5000"}, "it goes to ");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kNetwork);
    CHECK(std::string(error.what()).starts_with("it goes to "));
    return std::nullopt;
  }
}

TEST_CASE("url: where a server may send Kiln on") {
  const std::string page = "https://r.example/v2/a/blobs/uploads/";
  CHECK(follow(page, "/v2/a/blobs/uploads/1?s=x") == "https://r.example/v2/a/blobs/uploads/1?s=x");
  CHECK(follow(page, "1") == "https://r.example/v2/a/blobs/uploads/1");
  CHECK(follow(page, "https://store.example/x?y=%2F") == "https://store.example/x?y=%2F");
  CHECK(follow("http://127.0.0.1:5000/v2/", "http://127.0.0.1:6000/x") ==
        "http://127.0.0.1:6000/x");
  CHECK(follow("http://127.0.0.1/v2/", "http://mirror.lan:5000/x") == "http://mirror.lan:5000/x");
  CHECK_FALSE(follow(page, "http://127.0.0.1/x"));  // from https to http
  CHECK_FALSE(follow("http://127.0.0.1/v2/", "http://store.example/x"));
  for (const char* here : {"https://127.0.0.1/x", "https://localhost:8443/x", "https://[::1]/x"}) {
    CHECK_FALSE(follow(page, here));  // another machine does not lead to this one
    CHECK(follow("https://localhost/v2/", here) == here);
  }
  CHECK_FALSE(follow("http://mirror.lan:5000/v2/", "http://127.0.0.1:9200/x"));
  CHECK_FALSE(follow(page, "ftp://r.example/x"));
  CHECK_FALSE(follow(page, "file:///etc/passwd"));
  CHECK_FALSE(follow(page, "https://[::1"));
}

TEST_CASE("url: a locale changes no name") {
  static_assert(lower_case('I') == 'i' && lower_case('i') == 'i' && lower_case('\xcd') == '\xcd');
  static_assert(is_letter('I') && !is_letter('\xe9') && is_digit('0') && !is_digit('\xb2'));
  static_assert(equal_but_for_case("HTTP://I", "http://i") && !equal_but_for_case("i", "ii"));
  // The last two only where they are installed.
  for (const char* locale : {"C", "tr_TR.ISO-8859-9", "de_DE.UTF-8"}) {
    if (std::setlocale(LC_ALL, locale) == nullptr) continue;
    CHECK(parse_url("HTTPS://R.EXAMPLE-I/I").server() == "r.example-i");
    CHECK(size_text(1'250'000) == "1.2 MB");
    CHECK(size_text(999) == "999 B");
    CHECK(fixed_text(-0.06, 1) == "-0.1");
  }
  std::setlocale(LC_ALL, "C");
}

TEST_CASE("url: a field more in the query") {
  const std::string field = "digest=sha256:ab";
  CHECK(with_field("https://r.example/x", field) == "https://r.example/x?digest=sha256:ab");
  CHECK(with_field("https://r.example/x?", field) == "https://r.example/x?digest=sha256:ab");
  CHECK(with_field("https://r.example/x?s=a%2Fb%3D", field) ==
        "https://r.example/x?s=a%2Fb%3D&digest=sha256:ab");
  CHECK(with_field("https://r.example/x?s=1#part", field) ==
        "https://r.example/x?s=1&digest=sha256:ab");
}

}  // namespace
}  // namespace kiln
