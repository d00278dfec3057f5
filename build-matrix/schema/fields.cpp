// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/schema/fields.hpp"

#include <optional>

#include "base/join.hpp"
#include "build-matrix/schema/names.hpp"

namespace kiln::build {
namespace {

/// What has one spelling: that in which it is printed.
template <class Value>
Value read_spelt(const JsonView& value, std::optional<Value> (*parse)(std::string_view),
                 std::string_view wrong) {
  const auto is_good = [parse](const std::string& word) {
    const std::optional<Value> parsed = parse(word);
    return parsed && to_string(*parsed) == word;
  };
  return *parse(read_word(value, is_good, wrong));
}

}  // namespace

void check_keys(const JsonView& object, std::vector<std::string_view> required,
                std::initializer_list<std::string_view> optional) {
  if (!object.json().is_object()) object.fail("is not an object");
  std::vector<std::string_view> missing;
  for (const std::string_view key : required) {
    if (!object.has(key)) missing.push_back(key);
  }
  std::vector<std::string_view>& all = required;
  all.insert(all.end(), optional);
  for (const auto& item : object.json().items()) {
    if (std::ranges::find(all, item.key()) != all.end()) continue;
    object.fail("unknown key \"" + item.key() + "\"; the keys are " + join(all));
  }
  if (!missing.empty()) object.fail("lacks " + join(missing));
}

std::vector<JsonView> non_empty(const JsonView& array) {
  std::vector<JsonView> items = array.items();
  if (items.empty()) array.fail("is empty");
  return items;
}

int read_count(const JsonView& value, int from, int to) {
  const Json& json = value.json();
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() < static_cast<unsigned>(from) ||
      json.get<std::uint64_t>() > static_cast<unsigned>(to)) {
    value.fail("expected an integer from " + std::to_string(from) + " to " + std::to_string(to));
  }
  return json.get<int>();
}

std::string read_line(const JsonView& value) {
  std::string text = value.string();
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (text.empty() || std::ranges::any_of(text, is_control)) {
    value.fail("expected one line of text");
  }
  return text;
}

std::string read_source(const JsonView& value, std::string_view suffix, std::string_view package) {
  std::string path = read_word(
      value, [suffix](const std::string& text) { return is_source_path(text, suffix); },
      "is not a source; expected a path inside the package, or ../FOLDER/ and one inside the "
      "folder beside it, that ends in " +
          std::string(suffix));
  if (shared_folder_of(path) == package) {
    value.fail(quote(path) + " is this package's own; expected it without ../" +
               std::string(package) + "/");
  }
  return path;
}

DeviceCode read_target(const JsonView& value) {
  return read_spelt(value, parse_device_code,
                    "is not a target; expected sm_90, sm_90a, compute_80 and the like");
}

CpuLevel read_cpu_level(const JsonView& value) {
  return read_spelt(value, parse_cpu_level,
                    "is not a CPU level; expected x86-64-v3, armv8-a and the like");
}

}  // namespace kiln::build
