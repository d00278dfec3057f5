// SPDX-License-Identifier: Apache-2.0
//
// Words: what config.json says. What it should not say throws UnreadableModel with the file and the
// key. What is not there and what is null are one.
#pragma once

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "safetensors.hpp"

inline const nlohmann::json& member(const nlohmann::json& object, const char* key) {
  static const nlohmann::json nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}

struct Words {
  using json = nlohmann::json;
  const std::string& file;

  void expect(bool holds, const char* key, const json& found, const std::string& expected) const {
    if (holds) return;
    throw UnreadableModel("read " + file + ": " + key + " is " + found.dump() + ", expected " +
                          expected);
  }
  std::int64_t number(const json& object, const char* key) const {
    const json& found = member(object, key);
    expect(found.is_number_integer(), key, found, "a whole number");
    return found;
  }
  // `otherwise`, here and below: where it is not there; without one it must be.
  std::int64_t count(const json& object, const char* key, std::int64_t otherwise = 0) const {
    const json& found = member(object, key);
    if (found.is_null() && otherwise > 0) return otherwise;
    expect(found.is_number_integer() && found.get<std::int64_t>() > 0, key, found,
           "a whole number of at least 1");
    return found;
  }
  double real(const json& object, const char* key, std::optional<double> otherwise = {}) const {
    const json& found = member(object, key);
    if (found.is_null() && otherwise) return *otherwise;
    expect(found.is_number(), key, found, "a number");
    return found;
  }
  bool truth(const json& object, const char* key, bool otherwise) const {
    const json& found = member(object, key);
    expect(found.is_null() || found.is_boolean(), key, found, "true or false");
    return found.is_null() ? otherwise : found.get<bool>();
  }
  std::string lower(const json& object, const char* key, const std::string& otherwise) const {
    const json& found = member(object, key);
    if (found.is_null()) return otherwise;
    expect(found.is_string(), key, found, "a word");
    std::string word = found;
    std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
    return word;
  }
  void expect_nothing(const json& object, const char* key) const {
    const json& found = member(object, key);
    expect(found.is_null() || found.empty(), key, found, "none");
  }
};
