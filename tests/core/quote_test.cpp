// SPDX-License-Identifier: Apache-2.0
//
// What reaches an error message or a terminal of text that came from outside.
#include "base/quote.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <string>

#include "base/percent_encoded.hpp"
#include "base/shell_word.hpp"
#include "output_of.hpp"

namespace kiln::test {
namespace {

TEST_CASE("printable: what a terminal would obey is shown as bytes") {
  struct Row {
    const char* what;
    std::string text;
    std::string shown;
  };
  const Row rows[] = {
      {"escape", "a\x1b[31mb", "a\\x1b[31mb"},
      {"NUL", std::string("a\0b", 3), "a\\x00b"},
      {"carriage return", "real\rfake", "real\\x0dfake"},
      {"newline", "a\nb", "a\\x0ab"},
      {"tab", "a\tb", "a\\x09b"},
      {"DEL", "\x7f", "\\x7f"},
      {"U+009B, CSI in one character",
       "\xc2\x9b"
       "31m",
       "\\xc2\\x9b31m"},
      {"U+0085, next line", "\xc2\x85", "\\xc2\\x85"},
      {"U+202E, right to left",
       "\xe2\x80\xae"
       "cod",
       "\\xe2\\x80\\xaecod"},
      {"U+2066, isolate", "\xe2\x81\xa6", "\\xe2\\x81\\xa6"},
      {"U+2069, end of isolate", "\xe2\x81\xa9", "\\xe2\\x81\\xa9"},
      {"U+200F, right-to-left mark", "\xe2\x80\x8f", "\\xe2\\x80\\x8f"},
      {"U+061C, Arabic letter mark", "\xd8\x9c", "\\xd8\\x9c"},
      {"U+2028, line separator", "\xe2\x80\xa8", "\\xe2\\x80\\xa8"},
      {"a byte alone", "\xff", "\\xff"},
      {"a C1 byte alone", "\x9b", "\\x9b"},
      {"cut", "\xe2\x82", "\\xe2\\x82"},
      {"ESC, written too long", "\xc0\x9b", "\\xc0\\x9b"},
      {"half of a pair", "\xed\xa0\x80", "\\xed\\xa0\\x80"},
      {"beyond Unicode", "\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    CHECK(printable(row.text) == row.shown);
  }
}

TEST_CASE("printable: letters of any language stay") {
  for (const std::string text : {"", "geglu-mlp@1", "a \"b\" \\ c", "\xc3\xa9t\xc3\xa9",
                                 "\xe6\xa0\xb8", "\xf0\x9f\x94\xa5"}) {
    CHECK(printable(text) == text);
  }
}

TEST_CASE("printable: several lines keep their ends, and nothing else") {
  CHECK(printable_lines("a\nb\x1b[2J\n") == "a\nb\\x1b[2J\n");
}

TEST_CASE("printable: any byte in any place gives text that is printable itself") {
  for (int byte = 0; byte < 256; ++byte) {
    for (const char* around : {"", "\xe2", "\xe2\x80", "\xf0\x9f\x94"}) {
      const std::string shown = printable(around + std::string(1, static_cast<char>(byte)) + "z");
      CHECK(printable(shown) == shown);
      CHECK(shown.back() == 'z');
    }
  }
}

TEST_CASE("percent-encoded: what RFC 3986 reserves for nothing stays") {
  const std::string plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  std::size_t kept = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    const bool stays = plain.find(one) != std::string::npos;
    kept += stays ? 1 : 0;
    char hex[4];
    std::snprintf(hex, sizeof hex, "%%%02X", static_cast<unsigned>(byte));
    CHECK(percent_encoded(one) == (stays ? one : hex));
  }
  CHECK(kept == plain.size());
  struct Row {
    std::string text;
    const char* encoded;
  };
  const Row rows[] = {{"", ""},
                      {"repository:acme/op:pull", "repository%3Aacme%2Fop%3Apull"},
                      {"a b+c&d=e%", "a%20b%2Bc%26d%3De%25"},
                      {"../x/\u00fc", "..%2Fx%2F%C3%BC"},
                      {std::string("\0\n\x7f\xff", 4), "%00%0A%7F%FF"}};
  for (const Row& row : rows) CHECK(percent_encoded(row.text) == row.encoded);
}

TEST_CASE("shell word: a shell reads back the very text, and does not act on it") {
  CHECK(shell_word("/srv/kiln-1.0_a@b:c,d=e%+") == "/srv/kiln-1.0_a@b:c,d=e%+");
  CHECK(shell_word("/home/caf\u00e9") == "/home/caf\u00e9");
  for (const char* text : {"", "a b", "it's", "$(touch x) `y` \"z\"", "a;b|c&d>e<f(g)h", "~",
                           "*?[!]", "#x", "-n", "back\\slash", "two\nlines", "caf\u00e9 au lait"}) {
    CAPTURE(text);
    CHECK(output_of("printf %s " + shell_word(text)) == text);
  }
}

}  // namespace
}  // namespace kiln::test
