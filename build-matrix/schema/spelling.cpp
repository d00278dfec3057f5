// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/schema/spelling.hpp"

#include <charconv>
#include <cstdio>

#include "base/join.hpp"
#include "build-matrix/schema/names.hpp"

namespace kiln::build {

// Octal escapes, because they end after three digits whatever follows.
std::string literal_of(std::string_view text) {
  constexpr std::size_t kPieceBytes = 80;
  std::string out = "\"";
  std::size_t in_line = 0;
  for (char c : text) {
    if (in_line >= kPieceBytes) {
      out += "\"\n    \"";
      in_line = 0;
    }
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      out += '\\';
      out += static_cast<char>('0' + (byte >> 6));
      out += static_cast<char>('0' + ((byte >> 3) & 7));
      out += static_cast<char>('0' + (byte & 7));
    } else {
      out += c;
    }
    ++in_line;
  }
  return out + "\"";
}

std::string float_literal(double value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string hash_literal(std::uint64_t hash) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::string enumerator(std::string_view value) {
  return "k" + camel_case(value);
}

std::string comment(std::string_view text, std::string_view begin) {
  constexpr std::size_t kColumns = 100;
  std::string lines;
  std::string line(begin);
  for (const std::string_view word : split(text, ' ')) {
    if (line.size() > begin.size() && line.size() + 1 + word.size() > kColumns) {
      lines += line + "\n";
      line = begin;
    }
    line.append(" ").append(word);
  }
  // A backslash at the end would make a comment of the next line too.
  return lines + line + (line.ends_with('\\') ? "." : "") + "\n";
}

}  // namespace kiln::build
