// SPDX-License-Identifier: Apache-2.0
#include "documents/json.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/join.hpp"
#include "base/quote.hpp"
#include "kiln/error.hpp"

namespace kiln {

namespace {

constexpr std::size_t kMaxBytes = 4u << 20;
constexpr std::size_t kMaxDepth = 32;
/// "[[],[],…" of 4 MiB would take 100 MB as values. An index of 10,000 variants has 150,000.
constexpr std::size_t kMaxValues = 200'000;
constexpr std::size_t kShownDigits = 40;

/// Builds the document from the parser's events, refusing what nlohmann/json would let through.
class StrictReader : public nlohmann::json_sax<Json> {
 public:
  /// `exact`: no integer becomes a float.
  StrictReader(std::string_view text, std::string_view subject, bool exact)
      : text_(text), subject_(subject), exact_(exact) {}

  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t& token) override {
    if (exact_ && token.find_first_of(".eE") == string_t::npos) {
      fail("the integer " + token.substr(0, kShownDigits) + " has more than 64 bits");
    }
    return put(value);
  }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { fail("binary value"); }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    auto [member, added] = open_.back()->emplace(std::move(name), nullptr);
    if (!added) fail("key " + quote(member.key()) + " appears twice in one object");
    member_ = &*member;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& last_token,
                   const Json::exception&) override {
    const std::string near = last_token.empty() ? "its end" : quote(last_token);
    fail("not JSON at " + place(position) + ", near " + near);
  }

  /// Of the last byte that was read, as an editor counts.
  std::string place(std::size_t position) const {
    const std::string_view before = text_.substr(0, std::max<std::size_t>(position, 1) - 1);
    const auto lines = std::count(before.begin(), before.end(), '\n');
    const std::size_t column = before.size() - (before.rfind('\n') + 1);
    return "line " + std::to_string(lines + 1) + ", column " + std::to_string(column + 1);
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kIntegrity, subject_ + ": " + what);
  }

 private:
  template <class Value>
  bool put(Value&& value) {
    add(Json(std::forward<Value>(value)));
    return true;
  }

  Json* add(Json value) {
    if (++values_ > kMaxValues) {
      fail("has more than " + std::to_string(kMaxValues) + " values");
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *member_ = std::move(value);
    return member_;
  }

  bool open(Json container) {
    // The parser itself keeps no stack frame a level, but copying and dumping the result would.
    if (open_.size() == kMaxDepth) {
      fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    open_.push_back(add(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  std::string subject_;
  bool exact_;
  Json root_;
  std::vector<Json*> open_;  // stable: only the innermost container grows
  std::size_t values_ = 0;
  Json* member_ = nullptr;  // of the innermost object: where the value after a key goes
};

/// At most kMaxDepth levels deep.
void drop_nulls(Json& json) {
  if (json.is_object()) {
    for (auto member = json.begin(); member != json.end();) {
      member = member->is_null() ? json.erase(member) : std::next(member);
    }
  }
  if (!json.is_structured()) return;
  for (Json& each : json) drop_nulls(each);
}

/// A key within a path: as it is, unless it is too long or a terminal would obey it.
std::string shown(std::string_view key) {
  constexpr std::size_t kShown = 80;
  const bool plain = key.size() <= kShown && std::all_of(key.begin(), key.end(), [](char c) {
                       return c > ' ' && c < '\x7f';
                     });
  return plain ? std::string(key) : quote(key);
}

/// Of the string that begins at `at`: where its closing quote is, or the end of the text. Quote by
/// quote, which is four times as fast as byte by byte.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  while ((at = text.find('"', at + 1)) != std::string_view::npos) {
    const std::size_t before = text.find_last_not_of('\\', at - 1);
    if ((at - before) % 2 == 1) return at;  // not escaped: no backslash, or pairs of them
  }
  return text.size();
}

/// Of the object that begins at `at`: where its closing brace is, or the end of the text.
std::size_t end_of_object(std::string_view text, std::size_t at) {
  std::size_t depth = 0;
  for (; at < text.size(); ++at) {
    if (text[at] == '"') {
      at = end_of_string(text, at);
    } else if (text[at] == '{') {
      ++depth;
    } else if (text[at] == '}' && --depth == 0) {
      return at;
    }
  }
  return text.size();
}

Json read_json(std::string_view text, std::string_view subject, bool exact) {
  StrictReader reader(text, subject, exact);
  if (text.size() > kMaxBytes) {
    reader.fail("has " + std::to_string(text.size()) + " bytes; at most " +
                std::to_string(kMaxBytes) + " are read");
  }
  // The parser would skip a byte order mark: two spellings of one document.
  if (text.starts_with("\xef\xbb\xbf")) reader.fail("begins with a byte order mark");
  // The parser would take a NUL byte for the end, whatever follows it.
  if (text.find('\0') != std::string_view::npos) reader.fail("holds a NUL byte");
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) reader.fail("not JSON");
  return reader.take();
}

}  // namespace

std::string without_strings(std::string_view text, std::span<const std::string_view> names) {
  std::string kept;
  std::size_t from = 0;  // what is not looked at, or not kept yet
  for (std::size_t at = text.find('"'); at < text.size(); at = text.find('"', at)) {
    const std::size_t end = end_of_string(text, at);
    const std::string_view name = text.substr(at + 1, end - at - 1);
    at = end + 1;
    if (end == text.size()) break;
    // A string before a colon is a member's name: within a string, its quotes would be escaped.
    if (!text.substr(at).starts_with(":\"") || std::ranges::find(names, name) == names.end())
      continue;
    kept.append(text, from, at + 2 - from);
    from = end_of_string(text, at + 1);
    at = from + 1;
  }
  return kept.append(text, from);
}

std::string without_members(std::string_view text, std::string_view beginning) {
  const std::string opening = '"' + std::string(beginning);
  std::string kept;
  std::size_t from = 0;  // what is not kept yet
  for (std::size_t at = text.find(opening); at < text.size(); at = text.find(opening, at)) {
    // After a comma or a brace a quote opens a string: one that closed it would have a letter
    // behind.
    const bool opens = at > 0 && (text[at - 1] == ',' || text[at - 1] == '{');
    const std::size_t end = opens ? end_of_string(text, at) : at;
    if (!opens || !text.substr(std::min(end + 1, text.size())).starts_with(":{")) {
      at = end + 1;
      continue;
    }
    kept.append(text, from, at - from);
    from = std::min(end_of_object(text, end + 2) + 1, text.size());
    if (text.substr(from).starts_with(',')) {
      ++from;
    } else if (kept.ends_with(',')) {
      kept.pop_back();
    }
    at = from;
  }
  return kept.append(text, from);
}

Json parse_json(std::string_view text, std::string_view subject) {
  return read_json(text, subject, false);
}

Json parse_exact_json(std::string_view text, std::string_view subject) {
  return read_json(text, subject, true);
}

Json parse_others_json(std::string_view text, std::string_view subject) {
  Json json = parse_json(text, subject);
  drop_nulls(json);
  return json;
}

namespace {

/// A text that JSON cannot hold, if there is one.
std::optional<std::string> not_utf8(const Json& value) {
  if (value.is_string()) {
    auto text = value.get<std::string>();
    return is_utf8(text) ? std::nullopt : std::optional(std::move(text));
  }
  if (!value.is_structured()) return std::nullopt;
  for (const auto& [key, inner] : value.items()) {
    if (value.is_object() && !is_utf8(key)) return key;
    if (std::optional<std::string> found = not_utf8(inner)) return found;
  }
  return std::nullopt;
}

}  // namespace

std::string dump_json(const Json& value) {
  try {
    return value.dump();
  } catch (const Json::exception& error) {
    // A name, a path or a reason that somebody typed.
    if (const std::optional<std::string> text = not_utf8(value)) {
      throw Error(ErrorCode::kUsage, "write JSON: " + quote(*text) +
                                         " is not UTF-8, as JSON is; "
                                         "nothing was written. Give it in UTF-8");
    }
    throw Error(ErrorCode::kInternal, std::string("write JSON: ") + error.what());
  }
}

JsonView JsonView::at(std::string_view key) const {
  if (!json().is_object()) fail_type("an object");
  const auto member = json().find(key);
  if (member == json().end()) fail("has no " + quote(key));
  return {*member, path_ + (root_ ? ": " : ".") + shown(key), false};
}

bool JsonView::has(std::string_view key) const {
  return json().is_object() && json().contains(key);
}

std::vector<JsonView> JsonView::items() const {
  if (!json().is_array()) fail_type("an array");
  std::vector<JsonView> views;
  views.reserve(json().size());
  for (const Json& item : json()) {
    views.push_back({item, path_ + "[" + std::to_string(views.size()) + "]", false});
  }
  return views;
}

std::vector<std::string> JsonView::strings() const {
  std::vector<std::string> strings;
  for (const JsonView& each : items()) strings.push_back(each.string());
  return strings;
}

std::vector<JsonView> JsonView::items_of(std::string_view key) const {
  if (!json().is_object()) fail_type("an object");
  return has(key) ? at(key).items() : std::vector<JsonView>();
}

void JsonView::expect_members(std::span<const std::string_view> known) const {
  if (!json().is_object()) fail_type("an object");
  for (const auto& [key, value] : json().items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    fail("has " + quote(key) + ", which Kiln " KILN_VERSION " does not know; it knows " +
         join(known));
  }
}

std::vector<std::pair<std::string, JsonView>> JsonView::members() const {
  if (!json().is_object()) fail_type("an object");
  std::vector<std::pair<std::string, JsonView>> found;
  for (const auto& item : json().items()) found.emplace_back(item.key(), at(item.key()));
  return found;
}

std::string JsonView::string() const {
  if (!json().is_string()) fail_type("a string");
  return json().get<std::string>();
}

std::uint64_t JsonView::unsigned_integer() const {
  if (!json().is_number_unsigned()) {
    const std::string found = json().is_number() ? json().dump() : json().type_name();
    fail("found " + found + ", expected an unsigned integer");
  }
  return json().get<std::uint64_t>();
}

int JsonView::version_number() const {
  const std::uint64_t number = unsigned_integer();
  if (number < 1 || number > std::numeric_limits<int>::max()) {
    fail("found " + std::to_string(number) + ", expected a version, a number from 1");
  }
  return static_cast<int>(number);
}

bool JsonView::boolean() const {
  if (!json().is_boolean()) fail_type("true or false");
  return json().get<bool>();
}

std::string JsonView::string_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? at(key).string() : std::string(fallback);
}

void JsonView::fail_type(const std::string& expected) const {
  fail("found " + std::string(json().type_name()) + ", expected " + expected);
}

void JsonView::fail(const std::string& what) const {
  throw Error(ErrorCode::kIntegrity, path_ + ": " + what);
}

}  // namespace kiln
