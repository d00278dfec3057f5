// SPDX-License-Identifier: Apache-2.0
//
// dev_consumer: computes through the typed ops that came with the package.
#include <cstdio>
#include <kiln/kiln.hpp>
#include <kiln/ops/row_scale.hpp>
#include <kiln_required.hpp>

int main() {
  using kiln::required::row_scale;
  try {
    const kiln::Kernel kernel = kiln::get_kernel(
        row_scale.name, {.version = row_scale.version, .device = kiln::Device::cpu()});
    const float x[] = {1, -2, 0.5F};
    float out[] = {0, 0, 0};
    const kiln::TensorMaker float32{kiln::DType::kFloat32, kiln::Device::cpu()};
    kernel.op<kiln::ops::row_scale::Forward>().run(
        {.x = float32(x, {3}), .out = float32(out, {3}), .attributes = {.scale = 3.0}});
    std::printf("%g %g %g\n", out[0], out[1], out[2]);
    return out[0] == 3 && out[1] == -6 && out[2] == 1.5F ? 0 : 1;
  } catch (const kiln::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
