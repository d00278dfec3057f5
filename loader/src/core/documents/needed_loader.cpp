// SPDX-License-Identifier: Apache-2.0
#include "documents/needed_loader.hpp"

#include <algorithm>

#include "base/number.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/abi.h"
#include "kiln/error.hpp"

namespace kiln {

namespace {

constexpr std::uint64_t kMaxNumber = 999999;

/// The ABI as a number, be it spelled "1" or 1.
std::optional<int> read_abi(const Json& value) {
  std::optional<std::uint64_t> number;
  if (value.is_string()) number = parse_decimal(value.get_ref<const std::string&>(), kMaxNumber);
  if (value.is_number_unsigned()) number = std::min(value.get<std::uint64_t>(), kMaxNumber);
  if (!number || *number == 0) return {};
  return static_cast<int>(*number);
}

const Json* member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

}  // namespace

std::optional<std::array<int, 3>> parse_loader_version(std::string_view text) {
  if (!is_word(text, ".-+")) return {};
  text = text.substr(0, text.find_first_of("-+"));
  std::array<int, 3> version{};
  for (int& part : version) {
    const std::size_t dot = text.find('.');
    const auto number = parse_decimal(text.substr(0, dot), kMaxNumber);
    if (!number) return {};
    part = static_cast<int>(*number);
    if (dot == std::string_view::npos) return version;
    text.remove_prefix(dot + 1);
  }
  return {};  // a fourth part
}

bool needs_newer_loader(std::string_view min_loader) {
  if (min_loader == KILN_VERSION) return false;
  static const auto this_loader = parse_loader_version(KILN_VERSION).value();
  const auto needed = parse_loader_version(min_loader);
  return needed && *needed > this_loader;
}

std::string too_new(const Json& stated, const NeededLoaderKeys& keys) {
  const NeededLoader found = guess_needed_loader(stated, keys);
  if (needs_newer_loader(found.min_loader)) {
    return "needs kiln >= " + found.min_loader + ", this is kiln " KILN_VERSION;
  }
  if (found.abi > KILN_ABI_MAJOR) {
    return "needs a kiln that loads package ABI " + std::to_string(found.abi) +
           ", this is kiln " KILN_VERSION " with ABI " + std::to_string(KILN_ABI_MAJOR);
  }
  return {};
}

void check_readable(const Json& stated, const NeededLoaderKeys& keys, std::string_view subject) {
  const std::string reason = too_new(stated, keys);
  if (reason.empty()) return;
  throw Error(ErrorCode::kUpgrade, std::string(subject) + ": " + reason + "; upgrade kiln");
}

NeededLoader parse_needed_loader(const JsonView& stated, const NeededLoaderKeys& keys) {
  NeededLoader result;
  const JsonView min_loader = stated.at(keys.min_loader);
  result.min_loader = min_loader.string();
  if (!parse_loader_version(result.min_loader)) {
    min_loader.fail("found " + quote(result.min_loader) +
                    ", expected a version of kiln, \"0.1.0\"");
  }
  const JsonView abi = stated.at(keys.abi);
  const std::optional<int> number = read_abi(abi.json());
  if (!number)
    abi.fail("found " + quote(dump_json(abi.json())) + ", expected an ABI number from 1");
  result.abi = *number;
  return result;
}

NeededLoader guess_needed_loader(const Json& stated, const NeededLoaderKeys& keys) {
  NeededLoader result;
  const Json* min_loader = member(stated, keys.min_loader);
  if (min_loader != nullptr && min_loader->is_string() &&
      parse_loader_version(min_loader->get_ref<const std::string&>())) {
    result.min_loader = min_loader->get<std::string>();
  }
  const Json* abi = member(stated, keys.abi);
  if (abi != nullptr) result.abi = read_abi(*abi).value_or(result.abi);
  return result;
}

}  // namespace kiln
