// SPDX-License-Identifier: Apache-2.0
//
// Matrices: random quantized weights for the check of quantized-mlp, in each layout that pack
// reads, and what pack made of them. The layouts are written here from their definitions and share
// no code with the package.
#pragma once

#include <cstdint>
#include <kiln/kiln.hpp>
#include <kiln/ops/quantized_mlp.hpp>
#include <kiln/testing.hpp>
#include <optional>
#include <random>
#include <vector>

namespace quantized_mlp_test {

using Values = std::vector<double>;
namespace ops = kiln::ops::quantized_mlp;

/// As pack_zeros has them; pack calls kGptqV2 kGptq.
using Layout = ops::PackZerosAttributes::Layout;

struct Format {
  int bits = 4;
  bool e4m3 = false;            ///< of 8 bits: codes are float8_e4m3fn, of Layout::kPlain
  std::int64_t scale_rows = 1;  ///< of e4m3: rows that share a scale: 1, 128, or 0: all
  std::int64_t group = 128;     ///< 0: one of the whole row
  bool zeros = false;
  bool is_signed = false;  ///< codes int8, of Layout::kPlain
  Layout layout = Layout::kPlain;
  kiln::DType scales = kiln::DType::kFloat16;

  const char* name() const { return e4m3 ? "e4m3" : bits == 4 ? "int4" : "int8"; }
};

/// One weight matrix [rows, columns].
struct Quantized {
  std::int64_t rows = 0, columns = 0, groups = 0;
  Format format;
  std::vector<std::int64_t> codes;  ///< from 0 on; of e4m3 their bits
  Values scales;                    ///< [rows, groups]
  std::vector<std::int64_t> zeros;  ///< likewise; empty where there are none

  std::int64_t group_of(std::int64_t k) const { return format.group == 0 ? 0 : k / format.group; }
  std::int64_t zero(std::int64_t row, std::int64_t group) const;
  /// NaN where a code of the group is.
  double scale(std::int64_t row, std::int64_t group) const;
  /// scale * (code - zero), row by row.
  Values weights() const;
};

/// Codes of the whole range; zeros too, with both ends; scales that make a row's sum of about
/// `size` with a vector of ones.
Quantized random_matrix(std::int64_t rows, std::int64_t columns, const Format& format, double size,
                        std::mt19937& engine);

/// On a device, as pack and pack_zeros wrote it.
struct Packed {
  kiln::testing::Array codes, scales;
  std::optional<kiln::testing::Array> zeros;
  bool e4m3;

  kiln::Tensor codes_tensor() const;
  kiln::Tensor zeros_or_none() const { return zeros ? zeros->tensor() : kiln::Tensor(); }
};

/// Packs from the matrix's layout, and compares what unpack gives, bit by bit.
Packed pack(kiln::testing::Check& check, const Quantized& matrix);

}  // namespace quantized_mlp_test
