// SPDX-License-Identifier: Apache-2.0
//
// Calls an op of a packed library for GPUs, on the driver that records what it is asked:
// launch LIBRARY COUNT DTYPE prints the launch, or the error. DTYPE: 32 or 16 bits of a float.
#include <dlfcn.h>
#include <kiln/abi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "../fake_cuda.h"

int main(int, char** argv) {
  auto* fake = static_cast<fake_cuda*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda"));
  void* library = dlopen(argv[1], RTLD_NOW);
  if (fake == nullptr || library == nullptr) return std::puts(dlerror()), 1;
  fake->value_count = 4;
  const auto entry = reinterpret_cast<kiln_package_fn>(dlsym(library, KILN_PACKAGE_SYMBOL));
  int64_t count = std::atoll(argv[2]);
  const auto bits = static_cast<uint8_t>(std::atoi(argv[3]));
  const auto tensor = [&](uintptr_t data) {
    return DLTensor{
        reinterpret_cast<void*>(data), {kDLCUDA, 0}, 1, {kDLFloat, bits, 1}, &count, nullptr, 0};
  };
  const DLTensor x = tensor(0x1000);
  const DLTensor out = tensor(0x2000);
  const DLTensor* tensors[] = {&x, &out};
  kiln_call call{};
  call.struct_size = sizeof(call);
  call.tensor_count = 2;
  call.tensors = tensors;
  kiln_error error{};
  const kiln_package& package = *entry();
  if (package.prepare({kDLCUDA, 0}, &error) != KILN_OK ||
      package.ops[0].run(&call, &error) != KILN_OK) {
    std::printf("%d %s\n", error.status, error.text);
    return 0;
  }
  const fake_launch& launch = fake->launch;
  std::printf("grid %u %u %u block %u %u %u shared %u arguments %llx %llx %d %x\n", launch.grid[0],
              launch.grid[1], launch.grid[2], launch.block[0], launch.block[1], launch.block[2],
              launch.shared_bytes, fake->values[0], fake->values[1],
              static_cast<int>(fake->values[2]), static_cast<unsigned>(fake->values[3]));
  return 0;
}
