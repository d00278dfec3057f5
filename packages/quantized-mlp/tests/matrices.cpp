// SPDX-License-Identifier: Apache-2.0
#include "matrices.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

namespace quantized_mlp_test {
namespace {

using kiln::DType;
using kiln::testing::Array;
using kiln::testing::Check;
using Words = std::vector<std::uint32_t>;

std::int64_t parts(std::int64_t extent, std::int64_t unit) {
  return (extent + unit - 1) / unit;
}

/// Words along the last dimension of [rows, columns], in the order of `order`.
Words in_words(const std::vector<std::int64_t>& values, std::int64_t rows, std::int64_t columns,
               int bits, const std::vector<int>& order) {
  const auto in_word = static_cast<std::int64_t>(order.size());
  const std::int64_t words = parts(columns, in_word);
  Words result(static_cast<std::size_t>(rows * words));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t word = 0; word < words; ++word) {
      for (std::int64_t i = 0; i < in_word; ++i) {
        const std::int64_t column = word * in_word + order[static_cast<std::size_t>(i)];
        if (column >= columns) continue;
        const auto value =
            static_cast<std::uint32_t>(values[static_cast<std::size_t>(row * columns + column)]);
        result[static_cast<std::size_t>(row * words + word)] |= value
                                                                << (static_cast<int>(i) * bits);
      }
    }
  }
  return result;
}

std::vector<int> in_order(int bits) {
  return bits == 4 ? std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7} : std::vector<int>{0, 1, 2, 3};
}
std::vector<int> awq_order() {
  return {0, 2, 4, 6, 1, 3, 5, 7};
}

template <class T>
std::vector<T> transposed(const std::vector<T>& values, std::int64_t rows, std::int64_t columns) {
  std::vector<T> result(values.size());
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    result[static_cast<std::size_t>(i % columns * rows + i / columns)] =
        values[static_cast<std::size_t>(i)];
  }
  return result;
}

Array array_of_words(kiln::Device device, const Words& words, std::int64_t rows) {
  Array array(device, DType::kInt32,
              {rows, rows == 0 ? 0 : static_cast<std::int64_t>(words.size()) / rows});
  Values values;
  for (const std::uint32_t word : words) values.push_back(static_cast<std::int32_t>(word));
  array.set(values);
  return array;
}

template <class T>
Array array_of(kiln::Device device, DType dtype, const std::vector<T>& values, std::int64_t rows,
               std::int64_t columns) {
  Array array(device, dtype, {rows, columns});
  array.set(Values(values.begin(), values.end()));
  return array;
}

bool is_by_column(Layout layout) {
  return layout == Layout::kGptq || layout == Layout::kGptqV2 || layout == Layout::kAwq;
}

/// Bytes as float8_e4m3fn, which Array has not.
kiln::Tensor as_e4m3(const Array& bytes) {
  const kiln::Tensor tensor = bytes.tensor();
  const kiln::Tensor e4m3(nullptr, DType::kFloat8E4M3FN, {0}, kiln::Device::cpu());
  DLTensor all = tensor.dl();
  all.dtype = e4m3.dl().dtype;
  return kiln::Tensor(all);
}
kiln::Tensor codes_tensor_of(const Array& bytes, bool e4m3) {
  return e4m3 ? as_e4m3(bytes) : bytes.tensor();
}

/// From the definition: a sign, 4 bits of exponent around 7, 3 of mantissa, S.1111.111 a NaN.
double computed_e4m3(std::int64_t code) {
  const int exponent = static_cast<int>(code >> 3 & 15);
  const double mantissa = static_cast<double>(code & 7) / 8;
  if (exponent == 15 && (code & 7) == 7) return std::numeric_limits<double>::quiet_NaN();
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -6) : std::ldexp(1 + mantissa, exponent - 7);
  return (code & 0x80) != 0 ? -size : size;
}

double value_of_e4m3(std::int64_t code) {
  static const auto values = [] {
    std::array<double, 256> all{};
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = computed_e4m3(static_cast<int>(i));
    return all;
  }();
  return values[static_cast<std::size_t>(code & 0xff)];
}

Array source_codes(kiln::Device device, const Quantized& of) {
  const int bits = of.format.bits;
  switch (of.format.layout) {
    case Layout::kPlain: {
      std::vector<std::int64_t> codes = of.codes;
      const std::int64_t middle = std::int64_t{1} << (bits - 1);
      for (std::int64_t& code : codes) code -= of.format.is_signed ? middle : 0;
      return array_of(device, of.format.is_signed ? DType::kInt8 : DType::kUInt8, codes, of.rows,
                      of.columns);
    }
    case Layout::kGptq:
    case Layout::kGptqV2: {
      // Along K, of [N, K]; the words are transposed.
      const Words words = in_words(of.codes, of.rows, of.columns, bits, in_order(bits));
      const std::int64_t across = parts(of.columns, 32 / bits);
      return array_of_words(device, transposed(words, of.rows, across), across);
    }
    case Layout::kAwq:
      return array_of_words(device,
                            in_words(transposed(of.codes, of.rows, of.columns), of.columns, of.rows,
                                     bits, awq_order()),
                            of.columns);
    case Layout::kCompressedTensors:
      break;
  }
  return array_of_words(device, in_words(of.codes, of.rows, of.columns, bits, in_order(bits)),
                        of.rows);
}

Array source_scales(kiln::Device device, const Quantized& of) {
  if (is_by_column(of.format.layout)) {
    return array_of(device, of.format.scales, transposed(of.scales, of.rows, of.groups), of.groups,
                    of.rows);
  }
  const std::int64_t rows = of.format.scale_rows == 0 ? of.rows : of.format.scale_rows;
  Values lines;
  for (std::int64_t row = 0; row < of.rows; row += rows) {
    const auto first = of.scales.begin() + static_cast<std::ptrdiff_t>(row * of.groups);
    lines.insert(lines.end(), first, first + static_cast<std::ptrdiff_t>(of.groups));
  }
  return array_of(device, of.format.scales, lines, parts(of.rows, rows), of.groups);
}

DType packed_scales_of(const Format& format) {
  return format.e4m3 ? DType::kFloat32 : format.scales;
}

Array source_zeros(kiln::Device device, const Quantized& of) {
  const int bits = of.format.bits;
  std::vector<std::int64_t> zeros = of.zeros;
  if (of.format.layout == Layout::kPlain) {
    return array_of(device, DType::kUInt8, zeros, of.rows, of.groups);
  }
  if (of.format.layout == Layout::kGptq) {
    for (std::int64_t& zero : zeros) zero = (zero - 1) & ((1 << bits) - 1);
  }
  const std::vector<std::int64_t> by_group = transposed(zeros, of.rows, of.groups);
  const std::vector<int> order = of.format.layout == Layout::kAwq ? awq_order() : in_order(bits);
  const Words words = in_words(by_group, of.groups, of.rows, bits, order);
  if (of.format.layout != Layout::kCompressedTensors) {
    return array_of_words(device, words, of.groups);
  }
  const std::int64_t across = parts(of.rows, static_cast<std::int64_t>(order.size()));
  return array_of_words(device, transposed(words, of.groups, across), across);
}

ops::PackAttributes::Layout pack_layout(Layout layout) {
  using To = ops::PackAttributes::Layout;
  switch (layout) {
    case Layout::kPlain:
      return To::kPlain;
    case Layout::kGptq:
    case Layout::kGptqV2:
      return To::kGptq;
    case Layout::kAwq:
      return To::kAwq;
    case Layout::kCompressedTensors:
      break;
  }
  return To::kCompressedTensors;
}

void compare_unpacked(Check& check, const Quantized& from, const Packed& packed) {
  const kiln::Device device = check.kernel().device();
  Array codes(device, DType::kUInt8, {from.rows, from.columns});
  Array scales(device, packed_scales_of(from.format), {from.rows, from.groups});
  Array zeros(device, DType::kUInt8, {from.rows, from.groups});
  Array weight(device, DType::kFloat32, {from.rows, from.columns});
  check.kernel().op<ops::Unpack>().run({.packed = packed.codes_tensor(),
                                        .packed_scales = packed.scales.tensor(),
                                        .packed_zeros = packed.zeros_or_none(),
                                        .codes = codes_tensor_of(codes, from.format.e4m3),
                                        .scales = scales.tensor(),
                                        .zeros = packed.zeros ? zeros.tensor() : kiln::Tensor(),
                                        .weight = weight.tensor()});
  const auto exact = [&](const char* name, const Array& found, const Values& expected) {
    check.compare(std::string("unpack ") + name, found, expected, 0);
  };
  exact("codes", codes, Values(from.codes.begin(), from.codes.end()));
  Values expected;
  for (std::int64_t row = 0; row < from.rows; ++row) {
    for (std::int64_t group = 0; group < from.groups; ++group) {
      expected.push_back(from.scale(row, group));
    }
  }
  exact("scales", scales, expected);
  if (packed.zeros) exact("zeros", zeros, Values(from.zeros.begin(), from.zeros.end()));
  Values weights = from.weights();
  for (double& value : weights) value = static_cast<double>(static_cast<float>(value));
  exact("weight", weight, weights);
}

}  // namespace

std::int64_t Quantized::zero(std::int64_t row, std::int64_t group) const {
  if (zeros.empty()) return std::int64_t{1} << (format.bits - 1);
  return zeros[static_cast<std::size_t>(row * groups + group)];
}

double Quantized::scale(std::int64_t row, std::int64_t group) const {
  if (format.e4m3) {
    for (std::int64_t k = 0; k < columns; ++k) {
      const double code = value_of_e4m3(codes[static_cast<std::size_t>(row * columns + k)]);
      if (std::isnan(code) && group_of(k) == group) return code;
    }
  }
  return scales[static_cast<std::size_t>(row * groups + group)];
}

Values Quantized::weights() const {
  Values result(codes.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    double of_group = 0;
    for (std::int64_t k = 0; k < columns; ++k) {
      const auto i = static_cast<std::size_t>(row * columns + k);
      const std::int64_t group = group_of(k);
      if (k == 0 || group != group_of(k - 1)) of_group = scale(row, group);
      result[i] = of_group * (format.e4m3 ? value_of_e4m3(codes[i])
                                          : static_cast<double>(codes[i] - zero(row, group)));
    }
  }
  return result;
}

kiln::Tensor Packed::codes_tensor() const {
  return codes_tensor_of(codes, e4m3);
}

Quantized random_matrix(std::int64_t rows, std::int64_t columns, const Format& format, double size,
                        std::mt19937& engine) {
  Quantized matrix;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.format = format;
  matrix.groups = format.group == 0 ? 1 : parts(columns, format.group);
  const std::int64_t most = (std::int64_t{1} << format.bits) - 1;
  std::uniform_int_distribution<std::int64_t> code(0, most);
  matrix.codes.resize(static_cast<std::size_t>(rows * columns));
  for (std::int64_t& each : matrix.codes) {
    do each = code(engine);
    while (format.e4m3 && (each & 0x7f) == 0x7f);
  }
  std::uniform_real_distribution<double> factor(0.5, 1.5);
  // The root of a code's mean square, less its zero.
  const double spread = format.e4m3 ? 113 : static_cast<double>(most) / std::sqrt(12);
  const double scale = size / (spread * std::sqrt(static_cast<double>(columns) + 12));
  Array rounded(kiln::Device::cpu(), format.scales, {rows, matrix.groups});
  Values scales(rounded.size());
  for (double& each : scales) each = scale * factor(engine) * (engine() % 8 == 0 ? -1 : 1);
  for (std::int64_t row = 0; row < rows; ++row) {
    if (format.scale_rows != 0 && row % format.scale_rows == 0) continue;
    if (row == 0) continue;
    const auto to = scales.begin() + static_cast<std::ptrdiff_t>(row * matrix.groups);
    std::copy_n(to - static_cast<std::ptrdiff_t>(matrix.groups), matrix.groups, to);
  }
  rounded.set(scales);
  matrix.scales = rounded.values();
  if (!format.zeros) return matrix;
  matrix.zeros.resize(matrix.scales.size());
  for (std::int64_t& each : matrix.zeros) {
    const auto which = engine() % 4;
    each = which == 0 ? 0 : which == 1 ? most : code(engine);
  }
  return matrix;
}

Packed pack(Check& check, const Quantized& matrix) {
  const kiln::Device device = check.kernel().device();
  const std::int64_t row_tiles = parts(matrix.rows, 16);
  Packed packed{Array(device, DType::kUInt8,
                      {row_tiles, parts(matrix.columns, 64), 128 * matrix.format.bits}),
                Array(device, packed_scales_of(matrix.format), {row_tiles, matrix.groups, 16}),
                {},
                matrix.format.e4m3};
  const Array codes = source_codes(device, matrix);
  const Array scales = source_scales(device, matrix);
  check.kernel().op<ops::Pack>().run({.codes = codes_tensor_of(codes, packed.e4m3),
                                      .scales = scales.tensor(),
                                      .packed = packed.codes_tensor(),
                                      .packed_scales = packed.scales.tensor(),
                                      .attributes = {.layout = pack_layout(matrix.format.layout)}});
  if (!matrix.zeros.empty()) {
    packed.zeros.emplace(device, DType::kUInt8,
                         std::vector<std::int64_t>{row_tiles, matrix.groups, 16});
    const Array zeros = source_zeros(device, matrix);
    check.kernel().op<ops::PackZeros>().run(
        {.zeros = zeros.tensor(),
         .packed_zeros = packed.zeros->tensor(),
         .attributes = {.layout = matrix.format.layout, .bits = matrix.format.bits}});
  }
  compare_unpacked(check, matrix, packed);
  return packed;
}

}  // namespace quantized_mlp_test
