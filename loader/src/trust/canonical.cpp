// SPDX-License-Identifier: Apache-2.0
#include "trust/canonical.hpp"

#include <nlohmann/json.hpp>
#include <string_view>

#include "kiln/error.hpp"

namespace kiln::trust {
namespace {

void append_string(std::string_view text, std::string& to) {
  to += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') to += '\\';
    to += c;
  }
  to += '"';
}

void append(const Json& value, std::string& to) {
  switch (value.type()) {
    case Json::value_t::object: {  // a std::map: its order is that of the keys' bytes
      char before = '{';
      for (const auto& [key, member] : value.items()) {
        to += before;
        append_string(key, to);
        to += ':';
        append(member, to);
        before = ',';
      }
      to += value.empty() ? "{}" : "}";
      return;
    }
    case Json::value_t::array: {
      char before = '[';
      for (const Json& item : value) {
        to += before;
        append(item, to);
        before = ',';
      }
      to += value.empty() ? "[]" : "]";
      return;
    }
    case Json::value_t::string:
      return append_string(value.get_ref<const std::string&>(), to);
    case Json::value_t::number_float:
      throw Error(ErrorCode::kTrust, "a number in it is not an integer: " + value.dump());
    default:
      to += value.dump();
  }
}

}  // namespace

std::string canonical_json(const Json& value) {
  std::string text;
  append(value, text);
  return text;
}

}  // namespace kiln::trust
