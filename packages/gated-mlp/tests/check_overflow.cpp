// SPDX-License-Identifier: Apache-2.0
//
// An h that float16 does not hold. Where a GPU stores it in float16 it is infinite, and y with it;
// or, where that is asked for, h saturates and y is that of the saturated h. A CPU has h in fp32.
#include <algorithm>
#include <cmath>

#include "forward_case.hpp"

namespace gated_mlp_test {
namespace {

void scale(kiln::DType dtype, double by, Bytes& bytes) {
  const std::size_t size = kiln::size_of(dtype);
  for (std::size_t i = 0; i < bytes.size(); i += size) {
    encode(dtype, by * decode(dtype, &bytes[i]), &bytes[i]);
  }
}

constexpr std::size_t kMostRows = 16;  // that are compared

}  // namespace

MlpData overflowing_mlp(Shape shape, std::uint64_t seed) {
  // Products of gate and up of about 400: a quarter of h is beyond 65504, and no y is.
  MlpData data = random_mlp(shape, kiln::DType::kFloat16, true, seed);
  scale(data.dtype, 400, data.gate);
  scale(data.dtype, 400, data.up);
  scale(data.dtype, 1.0 / 32, data.down);
  add_residual(data, seed + 1);
  scale(data.dtype, 1024, data.residual);  // as large as y
  data.saturates = true;
  return data;
}

double greatest_hidden(const Variant& variant) {
  return variant.memory.is_gpu() ? 65504 : std::numeric_limits<double>::infinity();
}

void check_saturation(Variant& variant, const Shape& shape, Shift shift, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const MlpData data = overflowing_mlp(shape, random());
  MlpValues values = values_of(data);
  values.activation = variant.package.gates.front();
  values.greatest = greatest_hidden(variant);
  std::vector<std::int64_t> rows = rows_to_check(shape.m, random);
  if (rows.size() > kMostRows) rows.resize(kMostRows);
  const MlpReference reference = mlp_reference(values, rows);
  check_forward_case(variant, {.data = data,
                               .gate = values.activation,
                               .shift = shift,
                               .reference = reference,
                               .rows = rows});
  if (!variant.memory.is_gpu()) return;
  MlpData infinite = data;
  infinite.saturates = false;
  MlpBuffers buffers(variant, infinite, values.activation, shift);
  buffers.run();
  variant.memory.synchronize();
  const std::vector<double> y = decode_all(data.dtype, buffers.read_y());
  report(variant, std::any_of(y.begin(), y.end(), [](double one) { return !std::isfinite(one); }),
         "overflow M=" + std::to_string(shape.m) + " D=" + std::to_string(shape.d) +
             " H=" + std::to_string(shape.h) + ": every y is finite");
}

void check_overflow(std::vector<Variant>& variants, const Options& options) {
  for (Variant& variant : variants) {
    std::uint64_t seed = options.seed + 11;
    for (const Shape& shape : {Shape{5, 40, 72}, Shape{70, 136, 264}, Shape{33, 65, 127}}) {
      for (const Shift shift : {Shift{}, shift_by(2)}) {
        check_saturation(variant, shape, shift, ++seed);
      }
    }
  }
}

}  // namespace gated_mlp_test
