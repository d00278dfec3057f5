// SPDX-License-Identifier: Apache-2.0
//
// Forward in a variant that needs cuBLASLt, against a driver and a cuBLASLt that record what they
// are asked: what is enqueued, in which order, with which descriptors. The suites "absent" and
// "none" are processes of their own: a variant whose library is not there, and one that needs none.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <kiln/sdk/check.hpp>
#include <kiln/sdk/device.hpp>
#include <kiln/sdk/images.hpp>
#include <string>
#include <thread>
#include <vector>

#include "fake_cublaslt.h"
#include "fake_cuda.h"
#include "host/cublaslt_plan.h"
#include "package.gen.hpp"
#include "portable/arguments.h"

namespace kiln::sdk {

const Identity kIdentity = {"geglu-mlp", 1, kDLCUDA};

namespace {
constexpr unsigned char kGatedImage[] = "gated image";
constexpr unsigned char kPlainImage[] = "plain image";
constexpr unsigned char kPointwiseImage[] = "pointwise image";
constexpr unsigned char kPaddedImage[] = "padded image";
}  // namespace

const Image kImages[] = {{"smxx_gated", kGatedImage, sizeof(kGatedImage)},
                         {"smxx_plain", kPlainImage, sizeof(kPlainImage)},
                         {"smxx_pointwise", kPointwiseImage, sizeof(kPointwiseImage)},
                         {"smxx_padded", kPaddedImage, sizeof(kPaddedImage)}};
const int kImageCount = 4;

}  // namespace kiln::sdk

namespace {

// The soname that the variant under test needs; empty: none.
const char* soname_of_test() {
  const char* soname = std::getenv("GATED_MLP_NEEDS");
  return soname == nullptr ? "" : soname;
}
const char* const kSonames[] = {soname_of_test()};

}  // namespace

namespace kiln::package {
const sdk::Libraries kLibraries = {kSonames, kSonames[0][0] == '\0' ? 0 : 1};
}  // namespace kiln::package

namespace {

using kiln::package::ForwardArguments;
using kiln::sdk::DType;

constexpr DLDevice kGpu0 = {kDLCUDA, 0};
constexpr DLDevice kGpu1 = {kDLCUDA, 1};

template <class Fake>
Fake& fake_in(const char* library_name, const char* symbol_name) {
  void* library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(library != nullptr, dlerror());
  void* symbol = dlsym(library, symbol_name);
  REQUIRE_MESSAGE(symbol != nullptr, "LD_LIBRARY_PATH must name the fakes' folders");
  return *static_cast<Fake*>(symbol);
}

fake_cuda& driver() {
  static fake_cuda& fake = fake_in<fake_cuda>("libcuda.so.1", "fake_cuda");
  return fake;
}

fake_cublaslt& library() {
  static fake_cublaslt& fake = fake_in<fake_cublaslt>("libcublasLt.so.13", "fake_cublaslt");
  return fake;
}

/// Contexts that nobody has loaded anything into: new ids, as if made again at the old addresses.
void fresh_contexts() {
  static unsigned long long next = 100;
  for (unsigned long long& id : driver().id_of_context) id = next++;
  std::memset(driver().calls, 0, sizeof(driver().calls));
  driver().depth = 0;
  driver().argument_bytes = 0;  // a portable kernel has others than the elementwise one
}

void fresh_fakes() {
  fresh_contexts();
  library() = {};
  library().proposals = 1;
}

/// Addresses that nothing reads.
void* address(std::uintptr_t number) {
  return reinterpret_cast<void*>(number << 32);
}
constexpr std::uintptr_t kX = 1, kGate = 2, kUp = 3, kDown = 4, kGateBias = 5, kUpBias = 6,
                         kDownBias = 7, kY = 8, kWorkspace = 9, kStream = 10, kResidual = 11;

ForwardArguments call_of(std::int64_t m, std::int64_t d, std::int64_t h, bool biased,
                         DType dtype = DType::kBFloat16) {
  ForwardArguments call = {};
  call.device = kGpu0;
  call.M = m;
  call.D = d;
  call.H = h;
  const auto place = [&](kiln::sdk::Tensor& tensor, std::uintptr_t number, bool present,
                         std::int64_t rows, std::int64_t columns = 1) {
    tensor = {present, dtype, address(number), {rows, columns}, {columns, 1}};
  };
  place(call.x, kX, true, m, d);
  place(call.gate, kGate, true, h, d);
  place(call.up, kUp, true, h, d);
  place(call.down, kDown, true, d, h);
  place(call.gate_bias, kGateBias, biased, h);
  place(call.up_bias, kUpBias, biased, h);
  place(call.down_bias, kDownBias, biased, d);
  place(call.residual, kResidual, false, m, d);
  place(call.y, kY, true, m, d);
  call.workspace = address(kWorkspace);
  call.workspace_bytes = forward_workspace_bytes(call);
  call.stream = address(kStream);
  return call;
}

ForwardArguments with_residual(ForwardArguments call) {
  call.residual.present = true;
  return call;
}

bool is_layout(const fake_lt_layout& layout, int type, std::int64_t rows, std::int64_t columns) {
  return layout.type == type && layout.rows == static_cast<std::uint64_t>(rows) &&
         layout.columns == static_cast<std::uint64_t>(columns) && layout.leading_dimension == rows;
}

struct Expected {
  const void* x;
  const void* weight;
  const void* bias;
  const void* residual;
  const void* y;
  std::int64_t in, out;
  int launches_before;
};

void check_gemm(const fake_lt_gemm& gemm, const ForwardArguments& call, const Expected& expected) {
  const int type = call.x.dtype == DType::kFloat16 ? 2 : 14;  // CUDA_R_16F, CUDA_R_16BF
  CHECK(gemm.operation.compute_type == 68);                   // CUBLAS_COMPUTE_32F
  CHECK(gemm.operation.scale_type == 0);                      // CUDA_R_32F
  CHECK(gemm.operation.transpose_a == 1);
  CHECK(gemm.operation.epilogue == (expected.bias != nullptr ? 4U : 1U));
  CHECK(gemm.operation.bias == expected.bias);
  CHECK(gemm.alpha == 1.0F);
  CHECK(gemm.beta == (expected.residual != nullptr ? 1.0F : 0.0F));
  // By columns: y^T [out, M] = w [in, out]^T x^T [in, M].
  CHECK(is_layout(gemm.layouts[0], type, expected.in, expected.out));
  CHECK(is_layout(gemm.layouts[1], type, expected.in, call.M));
  CHECK(is_layout(gemm.layouts[2], type, expected.out, call.M));
  CHECK(is_layout(gemm.layouts[3], type, expected.out, call.M));
  CHECK(gemm.data[0] == expected.weight);
  CHECK(gemm.data[1] == expected.x);
  CHECK(gemm.data[2] == (expected.residual != nullptr ? expected.residual : expected.y));
  CHECK(gemm.data[3] == expected.y);
  const gated_mlp::CublasltPlan plan = gated_mlp::plan_cublaslt({true, call.M, call.D, call.H});
  CHECK(gemm.workspace == static_cast<char*>(call.workspace) + plan.scratch_offset);
  CHECK(gemm.workspace_bytes == gated_mlp::kCublasltScratchBytes);
  CHECK(plan.scratch_offset + gemm.workspace_bytes == call.workspace_bytes);
  CHECK(gemm.preference.workspace_bytes == gemm.workspace_bytes);
  CHECK(gemm.preference.reductions == 2);  // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
  for (const std::uint32_t alignment : gemm.preference.alignments) CHECK(alignment == 16);
  CHECK(gemm.wanted == 1);
  CHECK(gemm.is_proposal == 1);
  CHECK(gemm.stream == call.stream);
  CHECK(gemm.launches_before == expected.launches_before);
}

void must(const ForwardArguments& call) {
  kiln_error error = {};
  REQUIRE_MESSAGE(forward(call, &error) == KILN_OK, error.text);
}

}  // namespace

TEST_CASE("cublaslt: gate, up, the geglu in place, down; each as cuBLASLt counts, by columns") {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const bool biased : {false, true}) {
      for (const bool exact : {false, true}) {
        const bool adds = exact == biased;  // a residual, beside biases and without
        fresh_fakes();
        driver().argument_bytes = sizeof(gated_mlp::PointwiseArguments);
        ForwardArguments call = call_of(777, 264, 1032, biased, dtype);
        if (adds) call = with_residual(call);
        CHECK(forward_workspace_bytes(call) == call.workspace_bytes);
        if (exact) call.approximate = ForwardArguments::Approximate::kNone;
        must(call);
        const std::int64_t up_offset = gated_mlp::plan_cublaslt({true, 777, 264, 1032}).up_offset;
        const void* const gated = call.workspace;
        const void* const up = static_cast<char*>(call.workspace) + up_offset;
        const auto bias = [&](std::uintptr_t number) { return biased ? address(number) : nullptr; };
        REQUIRE(library().calls[FAKE_LT_MATMUL] == 3);
        const fake_lt_gemm* const gemms = library().gemms;
        check_gemm(gemms[0], call,
                   {address(kX), address(kGate), bias(kGateBias), nullptr, gated, 264, 1032, 0});
        check_gemm(gemms[1], call,
                   {address(kX), address(kUp), bias(kUpBias), nullptr, up, 264, 1032, 0});
        const void* const residual = adds ? address(kResidual) : nullptr;
        check_gemm(gemms[2], call,
                   {gated, address(kDown), bias(kDownBias), residual, address(kY), 1032, 264, 1});

        REQUIRE(driver().calls[FAKE_LAUNCH] == 1);
        CHECK(std::string(static_cast<const char*>(driver().launch.function)) ==
              (dtype == DType::kFloat16 ? "pointwise_forward_f16x8" : "pointwise_forward_bf16x8"));
        CHECK(driver().launch.stream == call.stream);
        gated_mlp::PointwiseArguments pointwise = {};
        std::memcpy(&pointwise, driver().argument, sizeof(pointwise));
        CHECK(pointwise.gate == gated);
        CHECK(pointwise.up == up);
        CHECK(pointwise.out0 == gated);
        CHECK(pointwise.rows * pointwise.columns == 777 * 1032);
        CHECK(pointwise.gating.gate ==
              (exact ? gated_mlp::Gate::kGelu : gated_mlp::Gate::kGeluTanh));
        CHECK(library().alive == 0);
      }
    }
  }
}

TEST_CASE("cublaslt: a thread asks once about a product, and keeps what it was told") {
  fresh_fakes();
  const auto asked_by = [](const ForwardArguments& call) {
    const int before = library().calls[FAKE_LT_PROPOSE];
    const int products = library().calls[FAKE_LT_MATMUL];
    must(call);
    CHECK(library().calls[FAKE_LT_MATMUL] == products + 3);
    CHECK(library().gemms[products % 8].is_proposal == 1);
    CHECK(library().alive == 0);
    return library().calls[FAKE_LT_PROPOSE] - before;
  };
  CHECK(asked_by(call_of(777, 264, 1032, true)) == 2);  // gate and up are alike
  CHECK(asked_by(call_of(777, 264, 1032, true)) == 0);
  CHECK(asked_by(with_residual(call_of(777, 264, 1032, true))) == 0);
  CHECK(asked_by(call_of(777, 264, 1032, false)) == 2);
  CHECK(asked_by(call_of(777, 264, 1032, true, DType::kFloat16)) == 2);
  CHECK(asked_by(call_of(778, 264, 1032, true)) == 2);
  CHECK(asked_by(call_of(777, 264, 1040, true)) == 2);
  CHECK(asked_by(call_of(777, 272, 1032, true)) == 2);
  CHECK(asked_by(call_of(777, 264, 1032, true)) == 0);  // still: there were sixteen at most
  for (std::int64_t m = 1000; m < 1008; ++m) asked_by(call_of(m, 264, 1032, true));
  CHECK(asked_by(call_of(777, 264, 1032, true)) == 2);
  std::thread([&] { CHECK(asked_by(call_of(777, 264, 1032, true)) == 2); }).join();
  fresh_contexts();  // the next handle may be another GPU's
  CHECK(asked_by(call_of(777, 264, 1032, true)) == 2);
}

TEST_CASE("cublaslt: what the plan refuses goes to the portable kernels") {
  fresh_fakes();
  std::vector<ForwardArguments> calls = {call_of(511, 264, 1032, true)};
  kiln::sdk::Tensor ForwardArguments::*const tensors[] = {
      &ForwardArguments::x,       &ForwardArguments::gate,      &ForwardArguments::up,
      &ForwardArguments::down,    &ForwardArguments::y,         &ForwardArguments::gate_bias,
      &ForwardArguments::up_bias, &ForwardArguments::down_bias, &ForwardArguments::residual};
  for (const auto tensor : tensors) {
    ForwardArguments call = with_residual(call_of(777, 264, 1032, true));
    (call.*tensor).data = static_cast<char*>((call.*tensor).data) + 8;
    calls.push_back(call);
  }
  int launches = 0;
  for (const ForwardArguments& call : calls) {
    must(call);
    launches += 2;  // the gated product and the plain one
    CHECK(driver().calls[FAKE_LAUNCH] == launches);
  }
  CHECK(library().calls[FAKE_LT_MATMUL] == 0);
  // A bias or a residual that is left out may hold any address.
  ForwardArguments call = call_of(777, 264, 1032, false);
  call.up_bias.data = static_cast<char*>(call.up_bias.data) + 8;
  call.residual.data = static_cast<char*>(call.residual.data) + 8;
  must(call);
  CHECK(library().calls[FAKE_LT_MATMUL] == 3);
}

TEST_CASE("padded: a call with D or H that is no multiple of 8 runs on copies") {
  struct Row {
    std::int64_t m;
    int launches, products;  // with the copies before and after
  };
  const Row rows[] = {{777, 3, 3}, {511, 4, 0}};
  for (const Row& row : rows) {
    fresh_fakes();
    const ForwardArguments call = with_residual(call_of(row.m, 261, 1029, true));
    const ForwardArguments whole = call_of(row.m, 264, 1032, true);
    const auto copies = [](std::int64_t elements) { return (2 * elements + 255) / 256 * 256; };
    const std::int64_t y_offset =
        copies(row.m * 264) + 3 * copies(std::int64_t{264} * 1032) + 2 * copies(1032) + copies(264);
    CHECK(call.workspace_bytes ==
          static_cast<std::size_t>(y_offset + copies(row.m * 264)) + whole.workspace_bytes);
    driver().argument_bytes = sizeof(gated_mlp::PaddedCopy);  // the first of them
    must(call);
    CHECK(driver().calls[FAKE_LAUNCH] == row.launches);
    REQUIRE(library().calls[FAKE_LT_MATMUL] == row.products);
    char* const base = static_cast<char*>(call.workspace);
    if (row.products > 0) {
      const fake_lt_gemm& down = library().gemms[2];
      CHECK(is_layout(down.layouts[0], 14, 1032, 264));
      CHECK(down.data[2] == base + y_offset);  // the residual is where y will be
      CHECK(down.data[3] == base + y_offset);
    }
    // The last launch: y, from its copy.
    CHECK(std::string(static_cast<const char*>(driver().launch.function)) == "padded_copies");
    gated_mlp::PaddedCopy last = {};
    std::memcpy(&last, driver().argument, sizeof(last));
    CHECK(last.from == base + y_offset);
    CHECK(last.to == call.y.data);
    CHECK(last.from_columns == 264);
    CHECK(last.to_rows == row.m);
    CHECK(last.to_columns == 261);
    CHECK(last.parts_of_row == 1);
  }
}

TEST_CASE(
    "portable: the plain product alone gets the residual, which the choice of its tile minds") {
  fresh_fakes();
  driver().argument_bytes = sizeof(gated_mlp::GemmArguments);
  const auto down_of = [](const ForwardArguments& call) {
    must(call);
    gated_mlp::GemmArguments arguments = {};
    std::memcpy(&arguments, driver().argument, sizeof(arguments));
    CHECK(arguments.out == call.y.data);
    return arguments;
  };
  gated_mlp::GemmShape shape = {false, gated_mlp::Element::kBFloat16, 500, 8192, 264};
  const auto tiles_of = [&shape](bool aligned) {
    shape.aligned = aligned;
    return plan_gemm(shape, {132, 232448}).tiles_n;
  };
  REQUIRE(tiles_of(true) != tiles_of(false));
  for (const std::uintptr_t offset : {0U, 2U, 8U}) {
    ForwardArguments call = call_of(shape.m, shape.n, shape.k, true);
    call.residual.data = static_cast<char*>(call.residual.data) + offset;
    CHECK(down_of(call).residual == nullptr);
    CHECK(down_of(call).tiles_n == tiles_of(true));
    CHECK(down_of(with_residual(call)).residual == call.residual.data);
    CHECK(down_of(with_residual(call)).tiles_n == tiles_of(offset == 0));
  }
}

TEST_CASE("cublaslt: nothing to compute is nothing to enqueue") {
  fresh_fakes();
  must(call_of(0, 264, 1032, true));
  CHECK(driver().calls[FAKE_LAUNCH] == 0);
  CHECK(library().calls[FAKE_LT_MATMUL] == 0);
}

TEST_CASE("cublaslt: prepare makes one handle a context, also when threads come at once") {
  fresh_fakes();
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads;
  // The fake driver has one stack for all threads; with a current context nobody pushes.
  driver().stack[driver().depth++] = &driver().contexts[2];
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      if (kiln::package::prepare_libraries(kGpu0, nullptr) != KILN_OK) ++failed;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 0);
  CHECK(library().calls[FAKE_LT_CREATE] == 1);
  must(call_of(777, 264, 1032, false));
  CHECK(library().calls[FAKE_LT_CREATE] == 1);
  CHECK(library().gemms[0].handle == library().handle);

  REQUIRE(kiln::package::prepare_libraries(kGpu1, nullptr) == KILN_OK);
  CHECK(library().calls[FAKE_LT_CREATE] == 2);
  fresh_contexts();  // destroyed and made again: its handle is gone with it
  must(call_of(777, 264, 1032, false));
  CHECK(library().calls[FAKE_LT_CREATE] == 3);
}

TEST_CASE("cublaslt: a call that fails is named, and leaves no descriptor behind") {
  struct Row {
    fake_lt_call call;
    const char* name;
  };
  const Row rows[] = {{FAKE_LT_OPERATION_CREATE, "cublasLtMatmulDescCreate"},
                      {FAKE_LT_OPERATION_SET, "cublasLtMatmulDescSetAttribute"},
                      {FAKE_LT_LAYOUT_CREATE, "cublasLtMatrixLayoutCreate"},
                      {FAKE_LT_PREFERENCE_CREATE, "cublasLtMatmulPreferenceCreate"},
                      {FAKE_LT_PREFERENCE_SET, "cublasLtMatmulPreferenceSetAttribute"},
                      {FAKE_LT_PROPOSE, "cublasLtMatmulAlgoGetHeuristic"},
                      {FAKE_LT_MATMUL, "cublasLtMatmul"}};
  for (const Row& row : rows) {
    CAPTURE(row.name);
    fresh_fakes();
    library().fail_call = row.call;
    library().fail_result = 13;
    kiln_error error = {};
    CHECK(forward(call_of(777, 264, 1032, true), &error) == KILN_DEVICE_ERROR);
    CHECK(std::string(error.text) ==
          "geglu-mlp@1 forward: x [777, 264] by gate [1032, 264]: " + std::string(row.name) +
              " of libcublasLt.so.13 failed with CUBLAS_STATUS_EXECUTION_FAILED (13)");
    CHECK(library().alive == 0);
    CHECK(library().calls[row.call] == 1);
    CHECK(driver().calls[FAKE_LAUNCH] == 0);
  }
  fresh_fakes();
  library().fail_call = FAKE_LT_CREATE;
  library().fail_result = 1;
  kiln_error error = {};
  CHECK(kiln::package::prepare_libraries(kGpu0, &error) == KILN_DEVICE_ERROR);
  CHECK(
      std::string(error.text) ==
      "geglu-mlp@1 prepare: cublasLtCreate of libcublasLt.so.13 failed with an unknown status (1)");
  library().fail_result = 0;
  CHECK(kiln::package::prepare_libraries(kGpu0, &error) == KILN_OK);
}

TEST_CASE(
    "cublaslt: without a proposal that can run there is an error, and no other way is taken") {
  for (const bool none : {false, true}) {
    fresh_fakes();
    library().proposals = none ? 0 : 1;
    library().proposal_state = none ? 0 : 15;
    kiln_error error = {};
    CHECK(forward(call_of(777, 264, 1032, true), &error) == KILN_UNSUPPORTED);
    CHECK(std::string(error.text) ==
          "geglu-mlp@1 forward: x [777, 264] by gate [1032, 264]: libcublasLt.so.13 proposes no "
          "algorithm, expected one; choose a variant that does not need it");
    CHECK(library().calls[FAKE_LT_MATMUL] == 0);
    CHECK(driver().calls[FAKE_LAUNCH] == 0);
    CHECK(library().alive == 0);
  }
}

TEST_SUITE("absent" * doctest::skip()) {
  TEST_CASE("cublaslt: a library that is not there is an error of prepare and of forward") {
    fresh_contexts();
    kiln_error error = {};
    CHECK(kiln::package::prepare_libraries(kGpu0, &error) == KILN_DEVICE_ERROR);
    const std::string text = error.text;
    CHECK(
        text.starts_with("geglu-mlp@1 prepare: cannot load libcublasLt.so.99, which this variant "
                         "needs: "));
    CHECK(text.ends_with("install cuBLAS, or choose a variant that does not need it"));
    CHECK(forward(call_of(777, 264, 1032, true), &error) == KILN_DEVICE_ERROR);
    CHECK(driver().calls[FAKE_LAUNCH] == 0);
    must(call_of(511, 264, 1032, true));  // the portable kernels need no library
    CHECK(driver().calls[FAKE_LAUNCH] == 2);
  }
}

TEST_SUITE("none" * doctest::skip()) {
  TEST_CASE(
      "cublaslt: a variant that does not need it opens nothing and runs the portable kernels") {
    fresh_contexts();
    CHECK(kiln::package::prepare_libraries(kGpu0, nullptr) == KILN_OK);
    const ForwardArguments call = call_of(8192, 264, 1032, true);
    CHECK(call.workspace_bytes == 8192 * 1032 * 2);
    must(call);
    CHECK(driver().calls[FAKE_LAUNCH] == 2);
    CHECK(dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_NOLOAD) == nullptr);
  }
}
