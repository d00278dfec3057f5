// SPDX-License-Identifier: Apache-2.0
//
// Fields: strict reading of the two files that people write, package.json and matrix.json: what
// they have to say once, in one spelling, and nothing that is not known. Pure. All throw what
// JsonView throws.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/target.hpp"

namespace kiln::build {

/// Refuses any member that this version of the format does not have, since a misspelt key must not
/// turn into a default, and names all at once that are missing.
void check_keys(const JsonView& object, std::vector<std::string_view> required,
                std::initializer_list<std::string_view> optional = {});

/// The text of a value that `is_good`; else the error is its text and what is wrong with it.
template <class IsGood>
std::string read_word(const JsonView& value, IsGood is_good, std::string_view wrong) {
  std::string word = value.string();
  if (!is_good(word)) value.fail(quote(word) + " " + std::string(wrong));
  return word;
}

/// The elements of an array that has some.
std::vector<JsonView> non_empty(const JsonView& array);

/// What `read` makes of each text of a non-empty array; none may stand there twice.
template <class Read>
auto read_list(const JsonView& array, Read read) {
  std::vector<decltype(read(array))> values;
  for (const JsonView& item : non_empty(array)) {
    auto value = read(item);
    if (std::ranges::find(values, value) != values.end())
      item.fail(item.string() + " is listed twice");
    values.push_back(std::move(value));
  }
  return values;
}

/// A whole number, no less than `from` and no more than `to`.
int read_count(const JsonView& value, int from, int to);

/// Text that is not empty and has no line break.
std::string read_line(const JsonView& value);

/// A path that ends in `suffix`, inside the package of that name or inside the folder beside it
/// that "../FOLDER/" names.
std::string read_source(const JsonView& value, std::string_view suffix, std::string_view package);

DeviceCode read_target(const JsonView& value);
CpuLevel read_cpu_level(const JsonView& value);

}  // namespace kiln::build
