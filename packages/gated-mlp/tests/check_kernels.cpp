// SPDX-License-Identifier: Apache-2.0
//
// Forward through every GPU kernel, and each split of k, on the GPU at hand: pinned, or at shapes
// that the plan gives to each of them. Each kernel of the plain product adds a residual in its own
// way: it runs with one and without.
#include "forward_case.hpp"

namespace gated_mlp_test {
namespace {

std::vector<Variant*> of_family(std::vector<Variant>& variants, KernelFamily family) {
  std::vector<Variant*> chosen;
  for (Variant& variant : variants) {
    if (family_of(variant) == family) chosen.push_back(&variant);
  }
  return chosen;
}

void check_shape(const std::vector<Variant*>& variants, const KernelShape& one,
                 const Options& options, std::mt19937_64& random) {
  const Shape& shape = one.shape;
  const std::vector<std::int64_t> rows = rows_to_check(shape.m, random);
  for (const kiln::DType dtype : {kiln::DType::kBFloat16, kiln::DType::kFloat16}) {
    const std::string text = "M=" + std::to_string(shape.m) + " D=" + std::to_string(shape.d) +
                             " H=" + std::to_string(shape.h) + " " + name_of(dtype) + " " +
                             one.kernels;
    MlpData without = random_mlp(shape, dtype, true, random());
    without.kernels = one.kernels;
    MlpData with = without;
    add_residual(with, random());
    MlpValues values = values_of(with);
    const std::vector<double> residual = values.residual;
    const MlpProducts products = mlp_products(values, rows);
    const std::vector<Gate>& gates = variants.front()->package.gates;
    for (std::size_t i = 0; i < gates.size(); ++i) {
      const Gate gate = gates[i];
      if (options.light && (i == 0) == (dtype == kiln::DType::kFloat16)) continue;
      const bool adds = options.light || i % 2 == 1;
      const MlpData& data = adds ? with : without;
      values.activation = gate;
      values.residual = adds ? residual : std::vector<double>{};
      const MlpReference reference = mlp_reference(values, rows, products);
      for (Variant* variant : variants) {
        check_forward_case(*variant, {.data = data,
                                      .gate = gate,
                                      .shift = {},
                                      .reference = reference,
                                      .rows = rows,
                                      .twice = !options.light});
        check_isolation(*variant, options.light ? without : data, gate, text);
      }
    }
    if (options.light) continue;
    for (Variant* variant : variants) check_residual(*variant, with, text);
  }
  for (Variant* variant : variants) check_saturation(*variant, shape, {}, options.seed + 12);
}

}  // namespace

void check_kernels(std::vector<Variant>& variants, const Options& options) {
  if (variants.empty() || !variants.front().memory.is_gpu()) return;
  const Limits limits = variants.front().memory.limits();
  const gated_mlp::GpuFacts gpu = {limits.multiprocessors, limits.shared_bytes_per_block};
  std::mt19937_64 random(options.seed + 3);
  for (const KernelFamily family :
       {KernelFamily::kSm90, KernelFamily::kCublaslt, KernelFamily::kPortable}) {
    const std::vector<Variant*> chosen = of_family(variants, family);
    if (chosen.empty()) continue;
    for (const KernelShape& one : shapes_of_kernels(family, gpu, !options.light)) {
      check_shape(chosen, one, options, random);
    }
  }
}

}  // namespace gated_mlp_test
