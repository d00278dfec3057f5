// SPDX-License-Identifier: Apache-2.0
//
// TuneShapes: the calls that a user wants timed, by the extents of their tensors. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "documents/ops.hpp"
#include "install/tuned.hpp"

namespace kiln::cli {

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
