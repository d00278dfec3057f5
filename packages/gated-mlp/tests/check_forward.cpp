// SPDX-License-Identifier: Apache-2.0
//
// Forward against the double reference: random and chosen shapes, every dtype and gate, with and
// without biases and a residual, aligned and not. The reference is computed once a case and shared
// by the variants.
#include <cmath>

#include "forward_case.hpp"

namespace gated_mlp_test {
namespace {

std::int64_t log_uniform(std::int64_t most, std::mt19937_64& random) {
  std::uniform_real_distribution<double> exponent(0.0, std::log2(static_cast<double>(most)));
  return static_cast<std::int64_t>(std::exp2(exponent(random)));
}

std::vector<Shape> shapes_to_check(const Options& options, bool gpu) {
  std::vector<Shape> shapes = {{0, 64, 64},  {1, 1, 1},     {1, 8, 8},   {3, 0, 16},
                               {3, 16, 0},   {2, 7, 5},     {9, 0, 24},  {9, 24, 0},
                               {33, 64, 96}, {65, 72, 200}, {17, 33, 70}};
  if (options.light) return shapes;
  // Several blocks of rows on the CPU; on a GPU the shapes that fill it with the largest tile, in
  // the gated and in the plain product, and one that the medium tile gets.
  const std::vector<Shape> more =
      gpu ? std::vector<Shape>{{2061, 72, 2088},  {2061, 2056, 88}, {4100, 768, 3072},
                               {513, 512, 4112},  {1100, 8, 2056},  {700, 1032, 8},
                               {256, 3584, 1792}, {1, 1792, 7168},  {64, 768, 3072},
                               {130, 1001, 2050}, {64, 776, 1544},  {64, 2328, 4104},
                               {40, 2056, 6152}}
          : std::vector<Shape>{{1009, 64, 48}, {2030, 40, 100}, {5, 768, 3072}, {64, 768, 1536}};
  shapes.insert(shapes.end(), more.begin(), more.end());
  std::mt19937_64 random(options.seed);
  while (shapes.size() < (options.brief ? 24 : 60)) {
    Shape shape = {log_uniform(400, random), log_uniform(600, random), log_uniform(600, random)};
    if (random() % 2 == 0) {  // aligned rows: the fast kernels
      shape.d = (shape.d + 7) / 8 * 8;
      shape.h = (shape.h + 7) / 8 * 8;
    }
    shapes.push_back(shape);
  }
  return shapes;
}

/// Most are aligned. One in eight is not in any tensor, and one in eight in the residual alone, by
/// an element, two or four.
Shift random_shift(const MlpData& data, std::mt19937_64& random) {
  const std::size_t element = kiln::size_of(data.dtype);
  const std::uint64_t which = random() % 8;
  if (which == 0) return shift_by(element);
  if (which == 1 && data.has_residual) return {0, element << random() % 3};
  return {};
}

}  // namespace

void check_forward(std::vector<Variant>& variants, const Options& options) {
  if (variants.empty()) return;
  const bool gpu = variants.front().memory.is_gpu();
  std::vector<kiln::DType> dtypes = {kiln::DType::kBFloat16, kiln::DType::kFloat16};
  if (!gpu) dtypes.push_back(kiln::DType::kFloat32);
  std::mt19937_64 random(options.seed);
  bool beside_biases = false;  // the residual is, at every other shape
  for (const Shape shape : shapes_to_check(options, gpu)) {
    const std::vector<std::int64_t> rows = rows_to_check(shape.m, random);
    beside_biases = !beside_biases;
    for (const kiln::DType dtype : dtypes) {
      for (const bool biased : {false, true}) {
        MlpData data = random_mlp(shape, dtype, biased, random());
        if (biased == beside_biases) add_residual(data, random());
        MlpValues values = values_of(data);
        const MlpProducts products = mlp_products(values, rows);
        for (const Gate gate : variants.front().package.gates) {
          values.activation = gate;
          const MlpReference reference = mlp_reference(values, rows, products);
          const Shift shift = random_shift(data, random);
          for (Variant& variant : variants) {
            check_forward_case(variant, {data, gate, shift, reference, rows});
          }
        }
      }
    }
  }
}

}  // namespace gated_mlp_test
