// SPDX-License-Identifier: Apache-2.0
//
// Facts: the words in which documents state names and needs, each with one spelling, checked on the
// way in: what passes is safe as a path component, as an argument of dlopen and on a terminal.
// Between json and manifest. Pure. All throw Error(kIntegrity).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "documents/target.hpp"
#include "kiln/error.hpp"

namespace kiln {

/// The value of a string member, by one of target.hpp's parsers; `expected` says what it should be.
template <class Parse>
auto parse_fact(const JsonView& view, Parse parse, std::string_view expected) {
  const std::string text = view.string();
  auto value = parse(text);
  if (!value) view.fail("found " + quote(text) + ", expected " + std::string(expected));
  return *value;
}

/// Throws unless the document's "schema" is `expected`, "kiln.host/1": kUpgrade if it has a higher
/// number, kIntegrity if it is of something else; `hint` ends that text.
void check_schema(const JsonView& document, std::string_view expected, std::string_view hint);

/// The value of a string member that `fits`; `expected` says what does.
std::string parse_word(const JsonView& view, bool (*fits)(std::string_view),
                       std::string_view expected);

Version parse_version_fact(const JsonView& view);
std::string parse_driver_fact(const JsonView& view);
CpuLevel parse_cpu_fact(const JsonView& view);
std::string parse_package_name(const JsonView& view);

std::string parse_variant_id(const JsonView& view);

/// Text for people: at most so many bytes, all of them printable (quote.hpp).
inline constexpr std::size_t kMaxText = 300;
bool is_text(std::string_view text);
std::string parse_text(const JsonView& view);

/// Adds "sm_90a" and the like, which must be of this kind.
void add_device_code(const JsonView& view, std::string_view word, DeviceCode::Kind kind,
                     Needs& needs);

void add_library(const JsonView& view, std::string_view word, Needs& needs);

/// Device code of one kind, sorted, as words.
std::vector<std::string> code_words(const Needs& needs, DeviceCode::Kind kind);
std::vector<std::string> library_words(const Needs& needs);  ///< sorted

/// What must hold between needs, wherever they were stated.
void check_needs(const JsonView& view, const Needs& needs, Arch arch);

}  // namespace kiln
