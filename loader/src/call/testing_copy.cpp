// SPDX-License-Identifier: Apache-2.0
#include "call/testing_copy.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "kiln/error.hpp"
#include "kiln/testing.hpp"

namespace kiln {
namespace {

[[noreturn]] void fail_device(const std::string& what) {
  throw Error(ErrorCode::kDevice, "copy a test's array: " + what);
}

/// The CUDA driver's functions, by name: what allocated the memory has loaded it.
template <class... Arguments>
void call_driver(const char* name, Arguments... arguments) {
  static void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const found = driver == nullptr ? nullptr : ::dlsym(driver, name);
  if (found == nullptr) fail_device(std::string("libcuda.so.1 has no ") + name);
  const int result = reinterpret_cast<int (*)(Arguments...)>(found)(arguments...);
  if (result != 0) fail_device(std::string(name) + " gives CUresult " + std::to_string(result));
}

}  // namespace

void copy_for_test(Device device, void* to, const void* from, std::size_t bytes, bool upload) {
  if (device.kind != Device::Kind::kCuda) {
    std::memcpy(to, from, bytes);
    return;
  }
  constexpr int kContextAttribute = 1;  // CU_POINTER_ATTRIBUTE_CONTEXT
  const auto address = [](const void* memory) {
    return static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(memory));
  };
  void* context = nullptr;
  call_driver("cuPointerGetAttribute", static_cast<void*>(&context), kContextAttribute,
              address(upload ? to : from));
  call_driver("cuCtxPushCurrent_v2", context);
  if (upload) {
    call_driver("cuMemcpyHtoD_v2", address(to), from, bytes);
  } else {
    call_driver("cuMemcpyDtoH_v2", to, address(from), bytes);
  }
  // Of pageable memory the copy may be under way still, and a non-blocking stream would not wait.
  call_driver("cuCtxSynchronize");
  call_driver("cuCtxPopCurrent_v2", &context);
}

void testing::Array::copy(void* to, const void* from, std::size_t bytes, bool upload) const {
  copy_for_test(device_, to, from, bytes, upload);
}

}  // namespace kiln
