// SPDX-License-Identifier: Apache-2.0
//
// Markup: HTML under way. What is markup is a literal of this program, which the compiler sees to;
// every other text is escaped. So no document of a registry can become markup. Under the site's
// card, plots and pages. Pure.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/quote.hpp"

namespace kiln::registry {

/// As much of a text as there is room for, without a cut in the middle of a character.
inline std::string short_of(std::string_view text, std::size_t most_bytes = 80) {
  if (text.size() <= most_bytes) return std::string(text);
  std::size_t end = most_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "\xe2\x80\xa6";
}

/// Markup that stands in the source.
class Literal {
 public:
  consteval Literal(const char* text) : text_(text) {}  // NOLINT(google-explicit-constructor)
  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};

class Html {
 public:
  Html& markup(Literal literal) {
    html_ += literal.text();
    return *this;
  }

  /// Escaped for text and for quoted attributes; control characters and what turns the direction of
  /// writing become \xNN, newlines stay, a
  /// tab is a space.
  Html& text(std::string_view text) {
    std::string spaced(text);
    std::ranges::replace(spaced, '\t', ' ');
    for (const char c : printable_lines(spaced)) {
      switch (c) {
        case '&':
          html_ += "&amp;";
          break;
        case '<':
          html_ += "&lt;";
          break;
        case '>':
          html_ += "&gt;";
          break;
        case '"':
          html_ += "&quot;";
          break;
        case '\'':
          html_ += "&#39;";
          break;
        default:
          html_ += c;
      }
    }
    return *this;
  }

  Html& number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.5g", value);
    html_ += text;
    return *this;
  }

  Html& part(const Html& part) {
    html_ += part.html_;
    return *this;
  }

  /// <tag>text</tag>
  Html& element(Literal begin, std::string_view inside, Literal end) {
    return markup(begin).text(inside).markup(end);
  }

  bool empty() const { return html_.empty(); }
  const std::string& str() const { return html_; }

 private:
  std::string html_;
};

}  // namespace kiln::registry
