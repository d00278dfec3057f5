// SPDX-License-Identifier: Apache-2.0
//
// Forward where x, the residual and y, or h, have more than 2^31 elements: the same bits as in
// parts, whose places all fit into 31 bits. The calls are batch-invariant.
#include <cmath>

#include "check.hpp"

namespace gated_mlp_test {
namespace {

/// `parts` times `part.m` rows at once, and part by part.
void check_parts(Variant& variant, const Shape& part, std::int64_t parts, std::mt19937_64& random) {
  constexpr kiln::DType kDType = kiln::DType::kBFloat16;
  const auto [m, d, h] = part;
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(columns));
    return repeated_normal(kDType, rows * columns, deviation, random());
  };
  const Guarded x(variant.memory, matrix(parts * m, d));
  const Guarded residual(variant.memory, matrix(parts * m, d));
  const Guarded gate(variant.memory, matrix(h, d));
  const Guarded up(variant.memory, matrix(h, d));
  const Guarded down(variant.memory, matrix(d, h));
  Guarded y(variant.memory, x.bytes());
  const auto tensor = [&](const Guarded& buffer, std::int64_t row, std::int64_t rows,
                          std::int64_t columns) {
    unsigned char* const begin = static_cast<unsigned char*>(buffer.data()) +
                                 row * columns * static_cast<std::int64_t>(kiln::size_of(kDType));
    return kiln::Tensor(begin, kDType, {rows, columns}, variant.kernel.device());
  };
  const MlpLayer layer = variant.package.mlp(variant.kernel,
                                             {.gate = tensor(gate, 0, h, d),
                                              .up = tensor(up, 0, h, d),
                                              .down = tensor(down, 0, d, h),
                                              .invariant = true},
                                             variant.package.gates.front());
  const Guarded workspace(variant.memory, layer.workspace_bytes(tensor(x, 0, parts * m, d)));
  const auto run = [&, d = d](std::int64_t row, std::int64_t rows) {
    layer.forward({tensor(x, row, rows, d), tensor(residual, row, rows, d)},
                  tensor(y, row, rows, d), {workspace.data(), workspace.bytes()}, nullptr);
  };
  run(0, parts * m);
  variant.memory.synchronize();
  const Bytes whole = y.read();
  bool right = y.guards_intact() && workspace.guards_intact();
  y.poison();
  for (std::int64_t i = 0; i < parts; ++i) run(i * m, m);
  variant.memory.synchronize();
  right = right && y.read() == whole;
  report(variant, right,
         "forward M=" + std::to_string(parts * m) + " D=" + std::to_string(d) +
             " H=" + std::to_string(h) + " bfloat16: a huge call is not as its parts");
}

}  // namespace

void check_huge_forward(Variant& variant, const Options& options) {
  std::mt19937_64 random(options.seed + 5);
  check_parts(variant, {1'400'000, 768, 64}, 2, random);  // x, the residual and y
  check_parts(variant, {20'000, 64, 57'344}, 2, random);  // h
}

}  // namespace gated_mlp_test
