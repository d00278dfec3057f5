// SPDX-License-Identifier: Apache-2.0
#include "http/refusal.hpp"

#include <vector>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"

namespace kiln {

std::string words_of_refusal(const HttpAnswer& answer) {
  constexpr std::size_t kMaxWords = 200;
  try {
    const Json json = parse_others_json(answer.refusal, "refusal");
    const std::vector<JsonView> errors = JsonView(json, "refusal").items_of("errors");
    if (errors.empty()) return {};
    const std::string code = errors.front().string_or("code", "");
    const std::string message = errors.front().string_or("message", "");
    if (code.empty() && message.empty()) return {};
    std::string words = code + (code.empty() || message.empty() ? "" : ": ") + message;
    if (words.size() > kMaxWords) words = words.substr(0, kMaxWords) + "...";
    return " (" + printable(words) + ")";
  } catch (const Error&) {
    return {};
  }
}

}  // namespace kiln
