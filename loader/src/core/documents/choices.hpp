// SPDX-License-Identifier: Apache-2.0
//
// Choices: the kernels among which a package lets `kiln tune` choose. choices.json lies beside
// package.json and travels in a version's dev layer:
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

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "documents/ops.hpp"
#include "kiln/device.hpp"

namespace kiln {

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

inline constexpr std::size_t kMostTunedTensors = 64;  ///< of an op: a bit for each
inline constexpr std::size_t kMostTunedAttributes = 16;

/// What both who builds a package and who tunes it must know: `op` has all that the choices name,
/// and calls of it can be timed. Throws kIntegrity with what is wrong.
void check_offered(const OfferedOp& offered, const OpLayout& op);

/// Why `kiln tune` cannot make up this tensor of such calls, or compare it; empty: it can.
std::string why_not_timed(const OpLayout::Tensor& tensor, const std::string& dtype);

}  // namespace kiln
