// SPDX-License-Identifier: Apache-2.0
//
// Markup: HTML under way. What is markup is a literal of this program, which the compiler sees to;
// every other text is escaped. So no document of a registry can become markup. Under the site's
// card, plots and pages. Pure.
//
//   Html("<li><a href=\"{}\">{}</a></li>\n", url, title)
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/quote.hpp"

namespace kiln::registry {

/// As much of a text as there is room for, without a cut in the middle of a character.
inline std::string short_of(std::string_view text, std::size_t most_bytes = 80) {
  if (text.size() <= most_bytes) return std::string(text);
  std::size_t end = most_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "\xe2\x80\xa6";
}

/// Markup that stands in the source, with a {} for each part.
template <class... Parts>
class Form {
 public:
  consteval Form(const char* text) : text_(text) {  // NOLINT(google-explicit-constructor)
    std::size_t places = 0;
    for (std::size_t at = text_.find("{}"); at != std::string_view::npos;
         at = text_.find("{}", at + 2)) {
      ++places;
    }
    if (places != sizeof...(Parts)) throw "a form has a {} for each part";
  }
  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};
using Literal = Form<>;

class Html {
 public:
  Html() = default;
  template <class... Parts>
  explicit Html(std::type_identity_t<Form<Parts...>> form, const Parts&... parts) {
    add(form, parts...);
  }

  /// A part is a text, which is escaped, a number, or markup: Html or a Literal.
  template <class... Parts>
  Html& add(std::type_identity_t<Form<Parts...>> form, const Parts&... parts) {
    std::string_view rest = form.text();
    [[maybe_unused]] const auto put = [&](const auto& part) {
      const std::size_t at = rest.find("{}");
      html_ += rest.substr(0, at);
      write(part);
      rest.remove_prefix(at + 2);
    };
    (put(parts), ...);
    html_ += rest;
    return *this;
  }
  Html& add(const Html& part) {
    html_ += part.html_;
    return *this;
  }

  /// Escaped for text and for quoted attributes; control characters and what turns the direction of
  /// writing become \xNN, newlines stay, a tab is a space.
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

  bool empty() const { return html_.empty(); }
  const std::string& str() const { return html_; }

 private:
  template <class Part>
  void write(const Part& part) {
    if constexpr (std::is_same_v<Part, Html>) {
      html_ += part.html_;
    } else if constexpr (std::is_same_v<Part, Literal>) {
      html_ += part.text();
    } else if constexpr (std::is_arithmetic_v<Part>) {
      char digits[32];
      std::snprintf(digits, sizeof digits, "%.5g", static_cast<double>(part));
      html_ += digits;
    } else {
      text(part);
    }
  }

  std::string html_;
};

}  // namespace kiln::registry
