// SPDX-License-Identifier: Apache-2.0
//
// The host code that is made of a package's launches: called against a driver that records what it
// is asked (fake_cuda.c). The compiler's facts are made up (generate_sample.cpp): a kernel's
// parameters stand from Z to A, form number n has 32 * (n + 1) threads and n bytes.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <kiln/sdk/check.hpp>
#include <kiln/sdk/images.hpp>
#include <kiln/sdk/launch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "build-matrix/codegen/launch_code.hpp"
#include "build-matrix/schema/schema.hpp"
#include "fake_cuda.h"
#include "kiln/error.hpp"
#include "launched_paths.hpp"
#include "package.gen.hpp"

namespace kiln::sdk {

const Identity kIdentity = {"row-softmax", 1, kDLCUDA};
constexpr unsigned char kBytes[] = "image";
const Image kImages[] = {{"row_softmax", kBytes, sizeof(kBytes)},
                         {"row_sums", kBytes, sizeof(kBytes)},
                         {"sum_up", kBytes, sizeof(kBytes)}};
const int kImageCount = 3;

}  // namespace kiln::sdk

namespace {

namespace package = kiln::package;
using kiln::sdk::DType;

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

kiln::sdk::Tensor tensor(std::uintptr_t address, DType dtype, std::int64_t rows,
                         std::int64_t columns, std::int64_t stride) {
  return {.present = true,
          .dtype = dtype,
          .data = reinterpret_cast<void*>(address),
          .shape = {rows, columns},
          .stride = {stride, 1}};
}

constexpr std::uintptr_t kOut = 0x400000000000;  // behind all that x may take

package::ForwardArguments forward_call(std::int64_t rows, std::int64_t columns) {
  package::ForwardArguments call;
  call.device = {kDLCUDA, 0};
  call.x = tensor(0x1000, DType::kFloat32, rows, columns, columns);
  call.out = tensor(kOut, DType::kFloat32, rows, columns, columns);
  call.M = rows;
  call.N = columns;
  call.scale = 0.5;
  return call;
}

package::TotalArguments total_call(std::int64_t rows) {
  package::TotalArguments call;
  call.device = {kDLCUDA, 0};
  call.x = tensor(0x1000, DType::kFloat32, rows, 8, 8);
  call.out = tensor(0x2000, DType::kFloat32, 1, 1, 1);
  call.workspace = reinterpret_cast<void*>(0x8000);
  call.M = rows;
  call.N = 8;
  call.steps = 1;
  return call;
}

/// What was launched last, and with which arguments.
struct Launched {
  std::string kernel;
  std::vector<std::uint64_t> values;
};

template <class Call>
Launched launched(std::int32_t (*op)(const Call&, kiln_error*), const Call& call, int arguments) {
  driver().calls[FAKE_LAUNCH] = 0;
  driver().value_count = arguments;
  kiln_error error = {};
  const std::int32_t status = op(call, &error);
  REQUIRE_MESSAGE(status == KILN_OK, error.text);
  if (driver().calls[FAKE_LAUNCH] == 0) return {};
  return {static_cast<const char*>(driver().launch.function),
          {driver().values, driver().values + arguments}};
}

template <class Call>
std::string refused(std::int32_t (*op)(const Call&, kiln_error*), const Call& call) {
  driver().calls[FAKE_LAUNCH] = 0;
  kiln_error error = {};
  CHECK(op(call, &error) == KILN_UNSUPPORTED);
  CHECK(driver().calls[FAKE_LAUNCH] == 0);
  return error.text;
}

kiln::build::Package parsed() {
  std::ifstream file(kiln::paths::kLaunchedPackage);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return kiln::build::parse_package(text, "row-softmax", "package.json");
}

}  // namespace

TEST_CASE("launch code: a call's values choose the form, and the arguments are in its order") {
  package::ForwardArguments call = forward_call(5, 1024);
  float half = 0.5F;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &half, sizeof(bits));
  // x_stride, x_ptr, scale, out_ptr, n, two null pointers
  const std::vector<std::uint64_t> expected = {1024, 0x1000, bits, kOut, 1024, 0, 0};
  Launched launch = launched(package::forward, call, 7);
  CHECK(launch.kernel == "row_softmax_narrow_no_bias_fp32_x16");
  CHECK(launch.values == expected);
  CHECK(driver().launch.grid[0] == 5);
  CHECK(driver().launch.grid[1] == 1);
  CHECK(driver().launch.block[0] == 32 * 2);  // form 1
  CHECK(driver().launch.shared_bytes == 1);

  call.N = 1025;
  CHECK(launched(package::forward, call, 7).kernel == "row_softmax_wide_no_bias_fp32");
  call.N = 1040;
  CHECK(launched(package::forward, call, 7).kernel == "row_softmax_wide_no_bias_fp32_x16");
  for (const std::uintptr_t address : {std::uintptr_t{0x1001}, std::uintptr_t{0x1008}}) {
    call.x.data = reinterpret_cast<void*>(address);
    CHECK(launched(package::forward, call, 7).kernel == "row_softmax_wide_no_bias_fp32");
  }
  call = forward_call(5, 64);
  call.x.dtype = DType::kBFloat16;
  CHECK(launched(package::forward, call, 7).kernel == "row_softmax_narrow_no_bias_bf16_x16");
  call.x.stride[0] = 65;
  CHECK(launched(package::forward, call, 7).kernel == "row_softmax_narrow_no_bias_bf16");

  call = forward_call(5, 64);
  call.bias = tensor(0x3004, DType::kFloat32, 64, 1, 1);  // is none of those that count
  launch = launched(package::forward, call, 8);
  CHECK(launch.kernel == "row_softmax_narrow_fp32_x16");
  CHECK(launch.values == std::vector<std::uint64_t>{64, 0x1000, bits, kOut, 64, 0x3004, 0, 0});
}

TEST_CASE("launch code: nothing to do, and what is refused") {
  CHECK(launched(package::forward, forward_call(0, 64), 7).kernel.empty());
  for (const std::int64_t columns : {0, 8193}) {
    CHECK(refused(package::forward, forward_call(1, columns)) ==
          "row-softmax@1 forward: N is 1 to 8192");
  }
  package::ForwardArguments call = forward_call(1, 64);
  call.x.stride[0] = std::int64_t{1} << 31;
  CHECK(refused(package::forward, call) ==
        "row-softmax@1 forward: x_stride of kernel row_softmax is 2147483648, which is no int32");
  CHECK(refused(package::forward, forward_call(std::int64_t{1} << 31, 64)) ==
        "row-softmax@1 forward: the grid of kernel row_softmax is 2147483648 x 1 x 1; at most "
        "2147483647 x 65535 x 65535 is launched");
}

TEST_CASE("launch code: an op of two kernels, with a part of the workspace between them") {
  CHECK(package::forward_workspace_bytes(forward_call(5, 64)) == 0);
  CHECK(package::total_workspace_bytes(total_call(0)) == 0);
  CHECK(package::total_workspace_bytes(total_call(5)) == 256);
  CHECK(package::total_workspace_bytes(total_call(65)) == 512);

  package::TotalArguments call = total_call(300);
  // sums_ptr, out_ptr, count, two null pointers
  const Launched launch = launched(package::total, call, 5);
  CHECK(driver().calls[FAKE_LAUNCH] == 2);
  CHECK(launch.kernel == "sum_up_any");
  CHECK(launch.values == std::vector<std::uint64_t>{0x8000, 0x2000, 256, 0, 0});
  call.steps = 0;  // the second kernel's condition
  CHECK(launched(package::total, call, 5).kernel == "row_sums_any_no");
  CHECK(driver().calls[FAKE_LAUNCH] == 1);
  call.square = package::TotalArguments::Square::kYes;
  CHECK(launched(package::total, call, 5).kernel == "row_sums_any_yes");
  call.x.stride[0] = std::int64_t{1} << 31;  // an int64
  // x_ptr, sums_ptr, stride, n, two null pointers
  CHECK(launched(package::total, call, 6).values ==
        std::vector<std::uint64_t>{0x1000, 0x8000, 2147483648, 8, 0, 0});
}

TEST_CASE("launch code: what the second kernel refuses is refused before the first one runs") {
  package::TotalArguments call = total_call(300);
  call.steps = 1000001;
  CHECK(refused(package::total, call) == "row-softmax@1 total: steps is at most 1000000");
}

TEST_CASE("launch code: a descriptor, for GPUs with a copy engine and for others") {
  using kiln::sdk::Step;
  const kiln::sdk::Matrix matrix =
      kiln::sdk::matrix_of(tensor(0x10000, DType::kBFloat16, 100, 768, 1024));
  kiln::sdk::OnDevice device;
  kiln_error error = {};
  REQUIRE(device.enter({kDLCUDA, 0}, &error) == KILN_OK);
  driver().value_count = 6;

  kiln::sdk::DescribedCall mapped("forward", "product");
  mapped.map("x_ptr", matrix, 512, 128);
  mapped.pointer(reinterpret_cast<void*>(0x77));
  REQUIRE(mapped.launch(Step::kLaunch, device, 0, 32, 1, 1, 1, nullptr, &error) == KILN_OK);
  const fake_encode& encode = driver().encode;
  CHECK(encode.address == matrix.data);
  CHECK(encode.type == 9);  // CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
  CHECK(encode.extents[0] == 768);
  CHECK(encode.extents[1] == 100);
  CHECK(encode.stride == 2048);
  CHECK(encode.box[0] == 64);  // pieces of a block
  CHECK(encode.box[1] == 256);
  CHECK(encode.swizzle == 3);
  CHECK(encode.promotion == 2);  // CU_TENSOR_MAP_L2_PROMOTION_L2_128B
  const auto values = [](int first, int count) {
    return std::vector<std::uint64_t>(driver().values + first, driver().values + first + count);
  };
  CHECK(values(1, 5) == std::vector<std::uint64_t>{100, 768, 1024, 1, 0x77});

  driver().value_count = 12;
  kiln::sdk::DescribedCall computed("forward", "product");
  computed.described("x_ptr", matrix);
  computed.pointer(reinterpret_cast<void*>(0x77));
  REQUIRE(computed.launch(Step::kLaunch, device, 0, 32, 1, 1, 1, nullptr, &error) == KILN_OK);
  CHECK(values(0, 12) ==
        std::vector<std::uint64_t>{0x10000, 100, 768, 1024, 1, 0, 0, 100, 768, 1024, 1, 0x77});
}

TEST_CASE("launch code: of what no descriptor can be made") {
  using kiln::sdk::describable;
  using kiln::sdk::matrix_of;
  const auto good = tensor(0x10000, DType::kFloat16, 4, 64, 64);
  CHECK(describable(good));
  CHECK(!describable(tensor(0x10008, DType::kFloat16, 4, 64, 64)));
  CHECK(!describable(tensor(0x10000, DType::kFloat16, 4, 64, 68)));
  CHECK(describable(tensor(0x10000, DType::kFloat32, 4, 64, 68)));
  CHECK(!describable(tensor(0x10000, DType::kFloat16, 0, 64, 64)));
  CHECK(!describable(tensor(0x10000, DType::kFloat16, 4, 0, 64)));
  CHECK(!describable(kiln::sdk::Tensor{}));

  const kiln::sdk::Matrix flat = matrix_of(good, 2, 2, 128);
  CHECK(describable(flat));
  CHECK(flat.rows == 2);
  CHECK(flat.stride == 128);
  CHECK(!describable(matrix_of(good, 2, 3, 128)));  // more than it has
  CHECK(!describable(matrix_of(good, 2, 1, 0)));
  CHECK(!describable(matrix_of(good, 2, -1, -128)));
  kiln::sdk::Tensor absent = good;
  absent.present = false;
  CHECK(!describable(absent));
  CHECK(!describable(matrix_of(absent, 2, 2, 128)));
}

TEST_CASE("launch code: a matrix of which no descriptor can be made is refused for every GPU") {
  using kiln::sdk::DescribedCall;
  using kiln::sdk::Matrix;
  using kiln::sdk::matrix_of;
  using kiln::sdk::Step;
  struct Refused {
    Matrix matrix;
    const char* found;
  };
  const auto good = tensor(0x10000, DType::kFloat16, 4, 64, 64);
  const Refused table[] = {
      {matrix_of(good, 2, 3, 128), "[3, 128] of 256 elements at 0x10000 with rows 256 bytes apart"},
      {matrix_of(good, 2, 0, 128), "[0, 128] of 256 elements at 0x10000 with rows 256 bytes apart"},
      {matrix_of(good, 2, -2, 64), "[-2, 64] of 256 elements at 0x10000 with rows 128 bytes apart"},
      {matrix_of(tensor(0x10000, DType::kFloat16, 0, 64, 64)),
       "[0, 64] of 0 elements at 0x10000 with rows 128 bytes apart"},
      {matrix_of(tensor(0x10008, DType::kFloat16, 4, 64, 68)),
       "[4, 64] of 256 elements at 0x10008 with rows 136 bytes apart"}};
  kiln::sdk::OnDevice device;
  kiln_error error = {};
  REQUIRE(device.enter({kDLCUDA, 0}, &error) == KILN_OK);
  for (const Refused& refused : table) {
    for (const bool maps : {true, false}) {
      CAPTURE(refused.found);
      CAPTURE(maps);
      DescribedCall call("forward", "product");
      if (maps) {
        call.map("x_ptr", refused.matrix, 64, 64);
      } else {
        call.described("x_ptr", refused.matrix);
      }
      driver().calls[FAKE_LAUNCH] = 0;
      for (const Step step : {Step::kAsk, Step::kLaunch}) {
        error = {};
        // nothing to do
        CHECK(call.launch(step, device, 0, 32, 0, 1, 1, nullptr, &error) == KILN_OK);
        CHECK(call.launch(step, device, 0, 32, 1, 1, 1, nullptr, &error) == KILN_UNSUPPORTED);
        CHECK(std::string(error.text) ==
              std::string("row-softmax@1 forward: x_ptr of kernel product is ") + refused.found +
                  "; a descriptor needs elements, no more than the tensor has, and an address and "
                  "rows that are multiples of 16 bytes");
      }
      CHECK(driver().calls[FAKE_LAUNCH] == 0);
    }
  }
}

TEST_CASE("launch code: a workspace that no size counts is one that nobody has") {
  kiln::sdk::WorkspaceLayout layout;
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 256 * 256;
  CHECK(layout.add(-1, 4) == 0);
  CHECK(layout.add(3, 4) == 0);
  CHECK(layout.add(1, 4) == 256);
  CHECK(layout.bytes() == 512);
  layout.add(std::int64_t{1} << 62, 4);  // 2^64 bytes
  CHECK(layout.bytes() == kMost);
  layout.add(1, 4);
  CHECK(layout.bytes() == kMost);
}

TEST_CASE("launch code: a form that no GPU of the target can run is named") {
  const kiln::build::TritonFacts facts{
      .parameters = {}, .forms = {{"small", {.shared = 65536}}, {"large", {.shared = 163840}}}};
  const auto named = [&](std::string_view target) {
    return kiln::build::too_large(facts, *kiln::parse_device_code(target));
  };
  for (const char* target : {"sm_75", "sm_86", "sm_89", "sm_120"}) {
    CHECK(named(target).starts_with("large needs 163840 bytes of shared memory, "));
    CHECK(named(target).find("small") == std::string::npos);
  }
  CHECK(named("sm_120").find("sm_120 has 101376: calls of it are refused") != std::string::npos);
  for (const char* target : {"sm_80", "sm_87", "sm_90a", "sm_100", "compute_80"}) {
    CHECK(named(target).empty());
  }
}

TEST_CASE("launch code: what ptxas says of slow products is passed on") {
  CHECK(kiln::build::performance_losses("").empty());
  CHECK(kiln::build::performance_losses("info : Used 12 registers\n").empty());
  CHECK(kiln::build::performance_losses("info : (C7511) Potential Performance Loss: a in 'f'\n"
                                        "info : Used 12 registers\n"
                                        "Potential Performance Loss: b") ==
        "Potential Performance Loss: a in 'f'\nPotential Performance Loss: b\n");
}

TEST_CASE("launch code: the functions of expressions") {
  using namespace kiln::sdk;  // NOLINT(google-build-using-namespace)
  CHECK(divided(7, 2) == 3);
  CHECK(divided(-7, 2) == -4);  // as Python does
  CHECK(divided(7, 0) == 0);
  CHECK(remainder(-7, 2) == 1);
  CHECK(remainder(7, 0) == 7);
  CHECK(cdiv(7, 2) == 4);
  CHECK(cdiv(8, 2) == 4);
  CHECK(cdiv(0, 2) == 0);
  CHECK(cdiv(5, 0) == 0);
  CHECK(next_pow2(0) == 1);
  CHECK(next_pow2(1) == 1);
  CHECK(next_pow2(5) == 8);
  CHECK(next_pow2(std::numeric_limits<std::int64_t>::max()) == std::int64_t{1} << 62);
}

TEST_CASE("launch code: facts of other forms are refused, and the outline follows the package") {
  namespace build = kiln::build;
  build::Package one = parsed();
  const kiln::DeviceCode target = one.cuda.launch.targets.front();
  CHECK_THROWS_WITH_AS(
      build::generate_launches(one, target, {}),
      "launches of row-softmax: the compiler says nothing of row_softmax_narrow_no_bias_fp32",
      kiln::Error);
  const std::string outline = build::launches_outline(one, target);
  CHECK(outline == build::launches_outline(parsed(), target));
  one.cuda.launch.launches[0].grid[0] = "M + 1";
  CHECK(outline != build::launches_outline(one, target));

  build::LaunchInstance& wide = one.cuda.launch.launches[0].instances[1];
  wide.aligned = true;
  wide.descriptors["out_ptr"] = {.block = {1, 64}, .shape = {"N", "M"}};
  const std::string code = build::launches_outline(one, target);
  const std::string expects = "  if (!(call.N > int64_t{0})) return sdk::fail(";
  CHECK(code.find(expects) != std::string::npos);
  CHECK(code.find(expects) == code.rfind(expects));
  CHECK(code.find("sdk::KernelCall kernel(\"forward\"") != std::string::npos);
  CHECK(code.find("sdk::DescribedCall kernel(\"forward\"") != std::string::npos);
  CHECK(code.find("if ((call.N <= int64_t{8192}) && sdk::is_aligned(call.N) && "
                  "sdk::is_aligned(call.out.data) && sdk::is_aligned(call.x.data) && "
                  "sdk::is_aligned(call.x.stride[0])) {") != std::string::npos);
  CHECK(code.find("kernel.described(\"out_ptr\", sdk::matrix_of(call.out, 2, call.N, call.M));") !=
        std::string::npos);
}

TEST_CASE("launch code: the dtype of an optional tensor is asked for where it is there") {
  namespace build = kiln::build;
  build::Package one = parsed();
  const kiln::DeviceCode target = one.cuda.launch.targets.front();
  one.ops[0].tensors[1].dtypes = {"float16", "float32", "int8"};
  one.cuda.launch.workspace.push_back(
      {.op = "forward", .name = "scratch", .dtype = "bias", .count = "M"});
  one.cuda.launch.workspace.push_back(
      {.op = "forward", .name = "rows", .dtype = "x", .count = "M"});
  one.cuda.launch.launches[0].dtypes = {{"bias", {"float16"}}, {"x", {"float32"}}};
  const std::string code = build::launches_outline(one, target);
  CHECK(code.find("parts.scratch = layout.add(call.M, call.bias.present ? "
                  "sdk::dtype_bytes(call.bias.dtype) : 4);") != std::string::npos);
  CHECK(code.find("parts.rows = layout.add(call.M, sdk::dtype_bytes(call.x.dtype));") !=
        std::string::npos);
  CHECK(code.find("  if (call.bias.present && !sdk::is_one_of(call.bias.dtype, "
                  "{sdk::DType::kFloat16})) return") != std::string::npos);
  CHECK(code.find("  if (!sdk::is_one_of(call.x.dtype, {sdk::DType::kFloat32})) return") !=
        std::string::npos);
}

TEST_CASE("launch code: forms that come out the same are there once, and no more than fit") {
  namespace build = kiln::build;
  build::Package one = parsed();
  const kiln::DeviceCode target = one.cuda.launch.targets.front();
  const auto count = [&] {
    std::size_t forms = 0;
    for (const build::TritonImage& image : build::plan_triton(one, target).images) {
      forms += image.forms.size();
    }
    return forms;
  };
  CHECK(count() == 19);
  one.cuda.launch.launches.push_back(one.cuda.launch.launches[1]);  // the same launch twice
  CHECK(count() == 19);
  one.cuda.launch.launches.back().instances[0].warps = 8;  // another form of the same name
  CHECK(count() == 21);
  CHECK(build::plan_triton(one, target).images[1].forms[2].function == "row_sums_any_no_2");
  build::Launch& launch = one.cuda.launch.launches[0];
  for (int i = 0; i < 30; ++i) {
    launch.instances.push_back(launch.instances[0]);
    launch.instances.back().stages = i + 20;
  }
  CHECK_THROWS_WITH_AS(count(),
                       "expand row-softmax for sm_80: its launches have 3 kernels in 261 forms; at "
                       "most 32 in 256 can be loaded. Each dtype, optional tensor, word and "
                       "\"aligned\" multiplies the forms of its instances: take some away",
                       kiln::Error);
}
