// SPDX-License-Identifier: Apache-2.0
//
// Calls an op that was packed: call PACKAGE OP COUNT prints y for x = 0, 1, 2, …
#include <kiln/kiln.hpp>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int, char** argv) {
  try {
    const kiln::Kernel kernel =
        kiln::get_kernel(argv[1], {.version = 1, .device = kiln::Device::cpu()});
    std::vector<float> x(std::strtoul(argv[3], nullptr, 10));
    std::vector<float> y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    const auto count = static_cast<std::int64_t>(x.size());
    const kiln::Tensor tensors[] = {
        {x.data(), kiln::DType::kFloat32, {count}, kiln::Device::cpu()},
        {y.data(), kiln::DType::kFloat32, {count}, kiln::Device::cpu()}};
    kernel.op(argv[2]).run(tensors, {}, {});
    for (const float value : y) std::printf("%g ", value);
    std::printf("\n");
    return 0;
  } catch (const kiln::Error& error) {
    std::printf("%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
