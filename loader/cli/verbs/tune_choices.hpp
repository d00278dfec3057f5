// SPDX-License-Identifier: Apache-2.0
//
// TuneChoices: the kernels among which a package lets `kiln tune` choose, as its choices.json says,
// and the calls that a user wants timed. choices.json travels in a version's dev layer:
//
//   {"schema": "kiln.choices/1", "ops": [{
//     "op": "forward", "device": "cuda", "attribute": "kernels",
//     "parts": [["gated=prefill_128x192", …], ["down=decode_144x128,3", …]],
//     "any": ["approximate"], "within": {"bfloat16": 5e-3}}]}
//
// A value of the attribute is one word of each part, or of some, with spaces between. "within" says
// for each dtype that may be tuned how far, as relative L2, the outputs of two choices may be from
// each other: the error that the package promises, twice. "any": attributes whose value does not
// change which choice is the fastest; a call that gives another attribute is not tuned. Pure.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "documents/ops.hpp"
#include "install/tuned.hpp"
#include "kiln/device.hpp"

namespace kiln::cli {

inline constexpr const char* kChoicesFile = "choices.json";

struct OfferedOp {
  std::string op;
  Device::Kind device = Device::Kind::kCpu;
  std::string attribute;
  std::vector<std::vector<std::string>> parts;
  std::vector<std::string> any;
  std::map<std::string, double> within;  ///< by dtype
};

/// Throws kIntegrity.
std::vector<OfferedOp> parse_choices(std::string_view text, const std::string& subject);

using Shape = std::map<std::string, TunedRow::Range>;

/// "M=129-256,D=2048,H=8192". Throws kUsage unless it has each of the symbols, and no other.
Shape parse_shape(std::string_view text, const std::vector<std::string>& symbols);

/// "M=129-256 D=2048 H=8192"
std::string to_text(const Shape& shape);

/// The symbols of those tensors that calls have: all but the optional ones, and those of `with`.
std::vector<std::string> symbols_of(const OpLayout& layout, const std::vector<std::string>& with);

/// Where a shape is timed: each range at its ends and in its middle.
std::vector<std::map<std::string, std::int64_t>> points_of(const Shape& shape);

}  // namespace kiln::cli
