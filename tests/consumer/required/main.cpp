// SPDX-License-Identifier: Apache-2.0
//
// required_consumer: loads what its CMakeLists.txt requires, and says which variant that was.
#include <cstdio>
#include <kiln/kiln.hpp>
#include <kiln_required.hpp>
#include <string>

int main() {
  using kiln::required::geglu_mlp;
  try {
    const kiln::Kernel kernel = kiln::get_kernel(
        geglu_mlp.name, {.version = geglu_mlp.version, .device = kiln::Device::cpu()});
    std::printf("%s@%d %s\n", std::string(kernel.name()).c_str(), kernel.version(),
                std::string(kernel.variant()).c_str());
    return kernel.op("forward").name() == "forward" ? 0 : 1;
  } catch (const kiln::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
