// SPDX-License-Identifier: Apache-2.0
//
// The launcher inside GPU packages, against a driver that records what it is asked (fake_cuda.c).
// Each case works in contexts of its own, because what is loaded stays loaded.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <iterator>
#include <kiln/sdk/check.hpp>
#include <kiln/sdk/device.hpp>
#include <kiln/sdk/images.hpp>
#include <string>
#include <thread>
#include <vector>

#include "contexts.hpp"
#include "fake_cuda.h"

namespace kiln::sdk {

const Identity kIdentity = {"launcher", 3, kDLCUDA};

namespace {
constexpr unsigned char kGemm[] = "gemm image";
constexpr unsigned char kPointwise[] = "pointwise image";
constexpr KernelSpec kKernels[] = {
    {"gemm", "gemm_large", 160 * 1024}, {"gemm", "gemm_small", 48 * 1024},
    {"pointwise", "geglu", 0},          {"gemm", "gemm_huge", 300 * 1024},
    {"sm100_gemm", "gemm_other", 0},
};
}  // namespace

const Image kImages[] = {{"gemm", kGemm, sizeof(kGemm)},
                         {"pointwise", kPointwise, sizeof(kPointwise)}};
const int kImageCount = 2;
KernelList kernel_list() {
  return {kKernels, static_cast<int>(std::size(kKernels))};
}

}  // namespace kiln::sdk

using kiln::sdk::OnDevice;

namespace {

enum Kernel { kLarge, kSmall, kGeglu, kHuge, kOther };

fake_cuda& driver() {
  static fake_cuda* const fake = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(library != nullptr, dlerror());
    void* symbol = dlsym(library, "fake_cuda");
    REQUIRE_MESSAGE(symbol != nullptr, "LD_LIBRARY_PATH must name the recording driver's folder");
    return static_cast<fake_cuda*>(symbol);
  }();
  return *fake;
}

constexpr DLDevice kGpu0 = {kDLCUDA, 0};
constexpr DLDevice kGpu1 = {kDLCUDA, 1};

/// Contexts that nobody has loaded anything into: new ids, as if made again at the old addresses.
void fresh_contexts() {
  static unsigned long long next = 100;
  for (unsigned long long& id : driver().id_of_context) id = next++;
  std::memset(driver().calls, 0, sizeof(driver().calls));
  driver().depth = 0;
  driver().fail_result = 0;
  driver().bad_image[0] = '\0';
}

void make_current(int context) {
  driver().stack[driver().depth++] = &driver().contexts[context];
}

struct Failure {
  fake_call call;
  int result;
  std::string message;
};

}  // namespace

TEST_CASE("device: a thread without a context gets the primary one, and none when it leaves") {
  fresh_contexts();
  {
    kiln_error error = {};
    OnDevice gpu;
    REQUIRE_MESSAGE(gpu.enter(kGpu0, &error) == KILN_OK, error.text);
    CHECK(driver().depth == 1);
    CHECK(driver().stack[0] == &driver().contexts[0]);
    CHECK(gpu.facts().capability_major == 9);
    CHECK(gpu.facts().capability_minor == 0);
    CHECK(gpu.facts().multiprocessors == 132);
    CHECK(gpu.facts().shared_bytes_per_block == 232448);
  }
  CHECK(driver().depth == 0);
  CHECK(driver().calls[FAKE_PUSH] == 1);
  CHECK(driver().calls[FAKE_POP] == 1);
}

TEST_CASE("device: the caller's own context is used if it belongs to the device") {
  fresh_contexts();
  make_current(2);
  {
    OnDevice gpu;
    REQUIRE(gpu.enter(kGpu0, nullptr) == KILN_OK);
    CHECK(driver().loaded_in == &driver().contexts[2]);
    CHECK(driver().depth == 1);
  }
  CHECK(driver().depth == 1);
  CHECK(driver().calls[FAKE_PUSH] == 0);
  CHECK(driver().calls[FAKE_POP] == 0);
}

TEST_CASE("device: an attachment stays with its context and ends with it") {
  fresh_contexts();
  int own = 0;
  const auto attachment = [](DLDevice device) -> std::atomic<void*>& {
    OnDevice gpu;
    REQUIRE(gpu.enter(device, nullptr) == KILN_OK);
    return gpu.attachment();
  };
  CHECK(attachment(kGpu0).load() == nullptr);
  attachment(kGpu0).store(&own);
  CHECK(attachment(kGpu0).load() == &own);
  CHECK(attachment(kGpu1).load() == nullptr);
  fresh_contexts();  // destroyed and made again at the same address
  CHECK(attachment(kGpu0).load() == nullptr);
}

TEST_CASE("device: another device's context is set aside and restored") {
  fresh_contexts();
  make_current(2);
  {
    OnDevice gpu;
    REQUIRE(gpu.enter(kGpu1, nullptr) == KILN_OK);
    CHECK(driver().depth == 2);
    CHECK(driver().stack[1] == &driver().contexts[1]);
    CHECK(gpu.facts().capability_minor == 1);
  }
  CHECK(driver().depth == 1);
  CHECK(driver().stack[0] == &driver().contexts[2]);
}

TEST_CASE("device: images are loaded once per context, and at once made ready to launch") {
  fresh_contexts();
  make_current(2);
  for (int i = 0; i < 3; ++i) {
    OnDevice gpu;
    REQUIRE(gpu.enter(kGpu0, nullptr) == KILN_OK);
  }
  CHECK(driver().calls[FAKE_MODULE_LOAD] == 2);
  CHECK(driver().calls[FAKE_GET_FUNCTION] == 3);
  CHECK(driver().calls[FAKE_FUNCTION_LOAD] == 3);
  // Only the one above 48 KiB needs its limit raised.
  CHECK(driver().calls[FAKE_FUNCTION_SET_ATTRIBUTE] == 1);
  CHECK(driver().last_attribute == 8);  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  CHECK(driver().last_value == 160 * 1024);
  driver().depth = 0;
  make_current(3);
  {
    OnDevice gpu;
    REQUIRE(gpu.enter(kGpu0, nullptr) == KILN_OK);
  }
  CHECK(driver().calls[FAKE_MODULE_LOAD] == 4);
}

TEST_CASE("device: a context made at a destroyed one's address is loaded again") {
  fresh_contexts();
  make_current(3);
  {
    OnDevice gpu;
    REQUIRE(gpu.enter(kGpu0, nullptr) == KILN_OK);
  }
  CHECK(driver().calls[FAKE_MODULE_LOAD] == 2);
  driver().id_of_context[3] += 1000;
  {
    OnDevice gpu;
    REQUIRE(gpu.enter(kGpu0, nullptr) == KILN_OK);
  }
  CHECK(driver().calls[FAKE_MODULE_LOAD] == 4);
}

TEST_CASE("device: the primary context is retained once") {
  fresh_contexts();
  for (int i = 0; i < 3; ++i) {
    OnDevice gpu;
    REQUIRE(gpu.enter(kGpu1, nullptr) == KILN_OK);
  }
  CHECK(driver().calls[FAKE_PUSH] == 3);
  CHECK(driver().calls[FAKE_PRIMARY_RETAIN] <= 1);  // none if an earlier case did
  CHECK(driver().depth == 0);
}

TEST_CASE("device: a kernel is absent without its image or without the shared memory") {
  fresh_contexts();
  OnDevice gpu;
  REQUIRE(gpu.enter(kGpu0, nullptr) == KILN_OK);
  CHECK(gpu.has(kLarge));
  CHECK(gpu.has(kSmall));
  CHECK(gpu.has(kGeglu));
  CHECK(!gpu.has(kHuge));
  CHECK(!gpu.has(kOther));
  CHECK(!gpu.has(-1));
  CHECK(!gpu.has(5));
  kiln_error error = {};
  CHECK(gpu.launch(kHuge, {}, 1, nullptr, nullptr, &error) == KILN_UNSUPPORTED);
  CHECK(std::string(error.text) ==
        "launcher@3 launch: kernel gemm_huge of image gemm is not in this variant, or needs more "
        "shared memory than this GPU has (307200 of 232448 bytes)");
  CHECK(gpu.launch(17, {}, 1, nullptr, nullptr, &error) == KILN_UNSUPPORTED);
  CHECK(std::string(error.text) == "launcher@3 launch: there is no kernel number 17");
  CHECK(driver().calls[FAKE_LAUNCH] == 0);
}

TEST_CASE("device: a launch hands grid, threads, shared memory, stream and arguments on") {
  fresh_contexts();
  OnDevice gpu;
  REQUIRE(gpu.enter(kGpu0, nullptr) == KILN_OK);
  int stream = 0;
  void* arguments[] = {&stream};
  REQUIRE(gpu.launch(kLarge, {5, 6, 7}, 384, &stream, arguments, nullptr) == KILN_OK);
  const fake_launch& launch = driver().launch;
  CHECK(std::string(static_cast<const char*>(launch.function)) == "gemm_large");
  CHECK(launch.grid[0] == 5);
  CHECK(launch.grid[1] == 6);
  CHECK(launch.grid[2] == 7);
  CHECK(launch.block[0] == 384);
  CHECK(launch.block[1] == 1);
  CHECK(launch.block[2] == 1);
  CHECK(launch.shared_bytes == 160 * 1024);
  CHECK(launch.stream == &stream);
  CHECK(launch.arguments == arguments);
  CHECK(launch.extra == nullptr);
  CHECK(launch.context == &driver().contexts[0]);
}

TEST_CASE("device: a cluster and an overlapping launch are asked for by attributes") {
  fresh_contexts();
  OnDevice gpu;
  REQUIRE(gpu.enter(kGpu0, nullptr) == KILN_OK);
  int stream = 0;
  void* arguments[] = {&stream};
  const kiln::sdk::Launch both{.grid = {8}, .threads = 160, .cluster = 4, .overlap = true};
  REQUIRE(gpu.launch(kLarge, both, &stream, arguments, nullptr) == KILN_OK);
  CHECK(driver().calls[FAKE_LAUNCH] == 0);
  CHECK(driver().launch.grid[0] == 8);
  CHECK(driver().launch.grid[1] == 1);
  CHECK(driver().launch.block[0] == 160);
  CHECK(driver().launch.shared_bytes == 160 * 1024);
  CHECK(driver().launch.stream == &stream);
  CHECK(driver().launch.arguments == arguments);
  REQUIRE(driver().attribute_count == 2);
  CHECK(driver().attributes[0].id == 4);  // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
  CHECK(driver().attributes[0].value[0] == 4);
  CHECK(driver().attributes[0].value[1] == 1);
  CHECK(driver().attributes[0].value[2] == 1);
  CHECK(driver().attributes[1].id == 6);  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
  CHECK(driver().attributes[1].value[0] == 1);
  const kiln::sdk::Launch cluster{.grid = {8}, .threads = 160, .cluster = 2};
  REQUIRE(gpu.launch(kLarge, cluster, nullptr, nullptr, nullptr) == KILN_OK);
  CHECK(driver().attribute_count == 1);
  driver().fail_call = FAKE_LAUNCH_EX;
  driver().fail_result = 2;
  kiln_error error = {};
  CHECK(gpu.launch(kGeglu, both, nullptr, nullptr, &error) == KILN_DEVICE_ERROR);
  CHECK(std::string(error.text) ==
        "launcher@3 launch of geglu with grid 8 x 1 x 1, 160 threads, 0 bytes of shared memory, "
        "clusters of 4: cuLaunchKernelEx failed with CUDA_ERROR_OUT_OF_MEMORY (2)");
}

TEST_CASE("device: a matrix is described to the copy engine") {
  fresh_contexts();
  OnDevice gpu;
  REQUIRE(gpu.enter(kGpu0, nullptr) == KILN_OK);
  alignas(64) unsigned char map[kiln::sdk::kTensorMapBytes] = {};
  kiln::sdk::MatrixBox box{.data = map,
                           .dtype = kiln::sdk::DType::kBFloat16,
                           .rows = 100,
                           .columns = 768,
                           .box_rows = 96,
                           .box_columns = 64};
  REQUIRE(gpu.map_matrix(box, "gate", map, nullptr) == KILN_OK);
  const fake_encode& encode = driver().encode;
  CHECK(encode.map == map);
  CHECK(encode.address == map);
  CHECK(encode.type == 9);  // CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
  CHECK(encode.rank == 2);
  CHECK(encode.extents[0] == 768);
  CHECK(encode.extents[1] == 100);
  CHECK(encode.stride == 1536);
  CHECK(encode.box[0] == 64);
  CHECK(encode.box[1] == 96);
  CHECK(encode.steps[0] == 1);
  CHECK(encode.steps[1] == 1);
  CHECK(encode.interleave == 0);
  CHECK(encode.swizzle == 3);    // CU_TENSOR_MAP_SWIZZLE_128B
  CHECK(encode.promotion == 3);  // CU_TENSOR_MAP_L2_PROMOTION_L2_256B
  CHECK(encode.fill == 0);       // zeros
  box.dtype = kiln::sdk::DType::kFloat16;
  box.box_columns = 32;
  REQUIRE(gpu.map_matrix(box, "y", map, nullptr) == KILN_OK);
  CHECK(encode.type == 6);     // CU_TENSOR_MAP_DATA_TYPE_FLOAT16
  CHECK(encode.swizzle == 2);  // CU_TENSOR_MAP_SWIZZLE_64B
  box.box_columns = 16;
  REQUIRE(gpu.map_matrix(box, "y", map, nullptr) == KILN_OK);
  CHECK(encode.swizzle == 1);  // CU_TENSOR_MAP_SWIZZLE_32B
  box.dtype = kiln::sdk::DType::kFloat32;
  REQUIRE(gpu.map_matrix(box, "y", map, nullptr) == KILN_OK);
  CHECK(encode.type == 7);  // CU_TENSOR_MAP_DATA_TYPE_FLOAT32
  CHECK(encode.stride == 3072);
  CHECK(encode.swizzle == 2);
  box.dtype = kiln::sdk::DType::kFloat16;
  box.box_columns = 32;
  driver().fail_call = FAKE_ENCODE;
  driver().fail_result = 2;
  kiln_error error = {};
  CHECK(gpu.map_matrix(box, "y", map, &error) == KILN_DEVICE_ERROR);
  CHECK(std::string(error.text) ==
        "launcher@3 map of y [100, 768] in boxes of 96 x 32: cuTensorMapEncodeTiled failed with "
        "CUDA_ERROR_OUT_OF_MEMORY (2)");
}

TEST_CASE("device: a refusal of the driver names the call and the error, and leaves no trace") {
  const std::vector<Failure> failures = {
      {FAKE_DEVICE_GET, 2,
       "prepare on cuda:0: cuDeviceGet failed with CUDA_ERROR_OUT_OF_MEMORY (2)"},
      {FAKE_GET_CURRENT, 2,
       "prepare on cuda:0: cuCtxGetCurrent failed with CUDA_ERROR_OUT_OF_MEMORY (2)"},
      {FAKE_CONTEXT_GET_DEVICE, 2,
       "prepare on cuda:0: cuCtxGetDevice failed with CUDA_ERROR_OUT_OF_MEMORY (2)"},
      {FAKE_PUSH, 2,
       "prepare on cuda:0: cuCtxPushCurrent failed with CUDA_ERROR_OUT_OF_MEMORY (2)"},
      {FAKE_GET_ID, 999, "prepare on cuda:0: cuCtxGetId failed with unknown error (999)"},
      {FAKE_DEVICE_GET_ATTRIBUTE, 2,
       "prepare on cuda:0: cuDeviceGetAttribute failed with CUDA_ERROR_OUT_OF_MEMORY (2)"},
      {FAKE_MODULE_LOAD, 2,
       "prepare: image gemm on cuda:0, of compute capability 9.0: cuModuleLoadData failed with "
       "CUDA_ERROR_OUT_OF_MEMORY (2)"},
      {FAKE_GET_FUNCTION, 2,
       "prepare: kernel gemm_large of image gemm: cuModuleGetFunction failed with "
       "CUDA_ERROR_OUT_OF_MEMORY (2)"},
      {FAKE_FUNCTION_SET_ATTRIBUTE, 2,
       "prepare: kernel gemm_large of image gemm: cuFuncSetAttribute failed with "
       "CUDA_ERROR_OUT_OF_MEMORY (2)"},
      {FAKE_FUNCTION_LOAD, 2,
       "prepare: kernel gemm_large of image gemm: cuFuncLoad failed with "
       "CUDA_ERROR_OUT_OF_MEMORY (2)"},
  };
  for (const Failure& failure : failures) {
    CAPTURE(failure.message);
    fresh_contexts();
    make_current(1);  // of the other device, so that every step is taken
    driver().fail_call = failure.call;
    driver().fail_result = failure.result;
    kiln_error error = {};
    {
      OnDevice gpu;
      CHECK(gpu.enter(kGpu0, &error) == KILN_DEVICE_ERROR);
    }
    CHECK(error.status == KILN_DEVICE_ERROR);
    CHECK(std::string(error.text) == "launcher@3 " + failure.message);
    CHECK(driver().depth == 1);
    const int loaded = driver().calls[FAKE_MODULE_LOAD] - (failure.call == FAKE_MODULE_LOAD);
    CHECK(driver().calls[FAKE_MODULE_UNLOAD] == loaded);
    driver().fail_result = 0;
    OnDevice again;
    CHECK(again.enter(kGpu0, &error) == KILN_OK);
  }
}

TEST_CASE("device: an image that the GPU cannot run is named, and the others are unloaded") {
  fresh_contexts();
  std::strcpy(driver().bad_image, "pointwise image");
  kiln_error error = {};
  OnDevice gpu;
  CHECK(gpu.enter(kGpu0, &error) == KILN_DEVICE_ERROR);
  CHECK(std::string(error.text) ==
        "launcher@3 prepare: image pointwise on cuda:0, of compute capability 9.0: "
        "cuModuleLoadData failed with CUDA_ERROR_NO_BINARY_FOR_GPU (209)");
  CHECK(driver().calls[FAKE_MODULE_UNLOAD] == 1);
}

TEST_CASE("device: a launch that the driver refuses says what was launched") {
  fresh_contexts();
  OnDevice gpu;
  REQUIRE(gpu.enter(kGpu0, nullptr) == KILN_OK);
  driver().fail_call = FAKE_LAUNCH;
  driver().fail_result = 2;
  kiln_error error = {};
  CHECK(gpu.launch(kGeglu, {1, 2, 3}, 256, nullptr, nullptr, &error) == KILN_DEVICE_ERROR);
  CHECK(std::string(error.text) ==
        "launcher@3 launch of geglu with grid 1 x 2 x 3, 256 threads, 0 bytes of shared memory: "
        "cuLaunchKernel failed with CUDA_ERROR_OUT_OF_MEMORY (2)");
}

TEST_CASE("device: what is no GPU of this machine is refused") {
  fresh_contexts();
  kiln_error error = {};
  OnDevice gpu;
  CHECK(gpu.enter({kDLCPU, 0}, &error) == KILN_INVALID_ARGUMENT);
  CHECK(std::string(error.text) ==
        "launcher@3 prepare: device type 1, number 0; expected type 2 (cuda), for which this "
        "variant is built");
  CHECK(gpu.enter({kDLCUDA, -1}, &error) == KILN_INVALID_ARGUMENT);
  CHECK(gpu.enter({kDLCUDA, 9}, &error) == KILN_DEVICE_ERROR);
  CHECK(std::string(error.text) ==
        "launcher@3 prepare on cuda:9: cuDeviceGet failed with unknown error (101)");
  REQUIRE(gpu.enter(kGpu0, &error) == KILN_OK);
  CHECK(gpu.enter(kGpu0, &error) == KILN_INVALID_ARGUMENT);
  CHECK(std::string(error.text) == "launcher@3 prepare: OnDevice::enter was called twice");
}

TEST_CASE("device: threads that come at once load the images once") {
  fresh_contexts();
  make_current(2);  // for all of them: the fake driver has one stack
  std::vector<std::thread> threads;
  std::vector<int> ready(8, 0);
  for (std::size_t i = 0; i < ready.size(); ++i) {
    threads.emplace_back([&ready, i] {
      OnDevice gpu;
      ready[i] = gpu.enter(kGpu0, nullptr) == KILN_OK && gpu.has(kLarge);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int one : ready) CHECK(one == 1);
  CHECK(driver().calls[FAKE_MODULE_LOAD] == 2);
}

// What happens once in a process, so it needs one of its own.
TEST_SUITE("first-use" * doctest::skip()) {
  TEST_CASE("device: a driver that does not start, or has no context to give, is refused") {
    fresh_contexts();
    driver().fail_result = 2;
    kiln_error error = {};
    OnDevice gpu;
    driver().fail_call = FAKE_INIT;
    CHECK(gpu.enter(kGpu0, &error) == KILN_DEVICE_ERROR);
    CHECK(std::string(error.text) ==
          "launcher@3 prepare on cuda:0: cuInit failed with CUDA_ERROR_OUT_OF_MEMORY (2)");
    driver().fail_call = FAKE_PRIMARY_RETAIN;
    CHECK(gpu.enter(kGpu0, &error) == KILN_DEVICE_ERROR);
    CHECK(std::string(error.text) ==
          "launcher@3 prepare on cuda:0: cuDevicePrimaryCtxRetain failed with "
          "CUDA_ERROR_OUT_OF_MEMORY (2)");
    driver().fail_result = 0;
    CHECK(gpu.enter(kGpu0, &error) == KILN_OK);
    CHECK(driver().calls[FAKE_PRIMARY_RETAIN] == 2);
  }
}

TEST_SUITE("old" * doctest::skip()) {
  TEST_CASE("device: a driver that lacks a function is refused with its name") {
    kiln_error error = {};
    OnDevice gpu;
    CHECK(gpu.enter(kGpu0, &error) == KILN_DEVICE_ERROR);
    CHECK(std::string(error.text) ==
          "launcher@3 libcuda.so.1 has no function cuLaunchKernel; expected the NVIDIA driver of "
          "CUDA 11.0 or newer");
  }
}

TEST_SUITE("broken" * doctest::skip()) {
  TEST_CASE("device: without a driver the text says what to install") {
    kiln_error error = {};
    OnDevice gpu;
    CHECK(gpu.enter(kGpu0, &error) == KILN_DEVICE_ERROR);
    const std::string message = error.text;
    CHECK(message.starts_with("launcher@3 cannot load libcuda.so.1: "));
    CHECK(message.ends_with("; install the NVIDIA driver, or choose a CPU variant"));
    OnDevice again;  // a failure is not remembered: it is found again
    CHECK(again.enter(kGpu0, nullptr) == KILN_DEVICE_ERROR);
  }
}
