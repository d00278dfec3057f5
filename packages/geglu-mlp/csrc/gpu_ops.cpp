// SPDX-License-Identifier: Apache-2.0
//
#include "gpu_ops.hpp"

#include "arguments.h"
#include "cublaslt.hpp"
#include "cublaslt_plan.h"
#include "plan.h"
#include "sm90_plan.h"

namespace kiln::package {
namespace {

using geglu_mlp::CublasltPlan;
using geglu_mlp::Element;
using geglu_mlp::Gating;
using geglu_mlp::GemmArguments;
using geglu_mlp::GemmPlan;
using geglu_mlp::GemmShape;
using geglu_mlp::GpuFacts;
using geglu_mlp::kTiles;
using geglu_mlp::PointwiseArguments;
using geglu_mlp::PointwisePlan;
using geglu_mlp::PointwiseShape;
using geglu_mlp::Sm90Arguments;
using geglu_mlp::Sm90Plan;

// In the order of gemm_kernel(), pointwise_kernel() and sm90_kernel().
#define KILN_TILES(prefix)                                        \
  {"smxx_gemm", prefix "_128x128x3", kTiles[0].shared_bytes},     \
      {"smxx_gemm", prefix "_128x128x4", kTiles[1].shared_bytes}, \
      {"smxx_gemm", prefix "_64x64", kTiles[2].shared_bytes},     \
      {"smxx_gemm", prefix "_32x32", kTiles[3].shared_bytes},     \
      {"smxx_gemm", prefix "_64x64_any", kTiles[4].shared_bytes}, \
      {"smxx_decode", prefix "_decode4", kTiles[5].shared_bytes}, \
      {"smxx_decode", prefix "_decode8", kTiles[6].shared_bytes},
#define KILN_POINTWISE(kind, backward, type, Element, width) \
  {"smxx_pointwise", "pointwise_" #kind "_" #type "x" #width, 0},
#define KILN_SM90(family, kind, shape, Tile) \
  {"sm90_" #family, #family "_" kind "_" #shape, geglu_mlp::Tile::kSharedBytes},
#define KILN_GATED_BF16(family, shape, Tile) KILN_SM90(family, "gated_bf16", shape, Tile)
#define KILN_GATED_F16(family, shape, Tile) KILN_SM90(family, "gated_f16", shape, Tile)
#define KILN_PLAIN_BF16(family, shape, Tile) KILN_SM90(family, "plain_bf16", shape, Tile)
#define KILN_PLAIN_F16(family, shape, Tile) KILN_SM90(family, "plain_f16", shape, Tile)

constexpr sdk::KernelSpec kKernelTable[] = {
    KILN_TILES("gated_bf16") KILN_TILES("gated_f16")                    //
    KILN_TILES("plain_bf16") KILN_TILES("plain_f16")                    //
    KILN_POINTWISES(KILN_POINTWISE)                                     //
    KILN_GATED_TILES(KILN_GATED_BF16) KILN_GATED_TILES(KILN_GATED_F16)  //
    KILN_PLAIN_TILES(KILN_PLAIN_BF16) KILN_PLAIN_TILES(KILN_PLAIN_F16)};
static_assert(sizeof(kKernelTable) / sizeof(kKernelTable[0]) == geglu_mlp::kAllKernels);
#undef KILN_TILES
#undef KILN_POINTWISE
#undef KILN_SM90
#undef KILN_GATED_BF16
#undef KILN_GATED_F16
#undef KILN_PLAIN_BF16
#undef KILN_PLAIN_F16

Element element_of(sdk::DType dtype) {
  switch (dtype) {
    case sdk::DType::kFloat32:
      return Element::kFloat32;
    case sdk::DType::kFloat16:
      return Element::kFloat16;
    case sdk::DType::kBFloat16:
      return Element::kBFloat16;
  }
  return Element::kFloat32;
}

bool is_aligned(const void* address, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

GpuFacts facts_of(const sdk::OnDevice& gpu) {
  return {gpu.facts().multiprocessors, gpu.facts().shared_bytes_per_block};
}

const void* data_or_null(const sdk::Tensor& tensor) {
  return tensor.present ? tensor.data : nullptr;
}

int32_t launch_gemm(const sdk::OnDevice& gpu, const GemmShape& shape, GemmArguments arguments,
                    void* stream, kiln_error* error) {
  const GemmPlan plan = plan_gemm(shape, facts_of(gpu));
  if (!plan.fits) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "forward: %lld x %lld outputs need more than 2^31 - 1 tiles; "
                     "split x into several calls",
                     static_cast<long long>(shape.m), static_cast<long long>(shape.n));
  }
  if (plan.ctas == 0) return KILN_OK;
  arguments.m = shape.m;
  arguments.n = shape.n;
  arguments.k = shape.k;
  arguments.tiles_m = plan.tiles_m;
  arguments.tiles_n = plan.tiles_n;
  arguments.panel = plan.panel;
  arguments.paired_stores = shape.paired ? 1 : 0;
  void* pointers[] = {&arguments};
  return gpu.launch(plan.kernel, {plan.ctas}, plan.threads, stream, pointers, error);
}

// A GEMM of forward: its shape, and the pointers that both families of kernels take.
struct GemmCall {
  GemmShape shape;
  GemmArguments arguments;
  const char* a_name;  // for errors
  const char* b0_name;
};

bool is_mapped(const GemmArguments& gemm) {
  return is_aligned(gemm.a, 16) && is_aligned(gemm.b0, 16) && is_aligned(gemm.b1, 16) &&
         is_aligned(gemm.out, 16);
}

// Keeps the last plan of each GEMM: a model calls with the same shapes again and again, and for
// some hundred rows a plan takes microseconds.
const Sm90Plan& plan_of(const GemmCall& call, const GpuFacts& gpu) {
  static thread_local struct {
    GemmShape shape;
    bool mapped = false;
    GpuFacts gpu;
    Sm90Plan plan;
  } planned[2];
  auto& last = planned[call.shape.gated ? 1 : 0];
  const bool mapped = is_mapped(call.arguments);
  if (!(last.shape == call.shape && last.mapped == mapped && last.gpu == gpu)) {
    last = {call.shape, mapped, gpu, plan_sm90(call.shape, mapped, gpu)};
  }
  return last.plan;
}

// `early`: the next kernel may start before this one ends.
int32_t launch_sm90(const sdk::OnDevice& gpu, const GemmCall& call, const Sm90Plan& plan,
                    bool early, void* stream, kiln_error* error) {
  const GemmShape& shape = call.shape;
  const GemmArguments& gemm = call.arguments;
  const geglu_mlp::Sm90Tile& tile = geglu_mlp::sm90_tile(shape.gated, plan.choice.tile);
  // In the other families each CTA reads weights of its own, once.
  const bool weights_are_shared = tile.family == geglu_mlp::Sm90Family::kPrefill;
  Sm90Arguments arguments = {};
  const sdk::DType dtype =
      shape.element == Element::kFloat16 ? sdk::DType::kFloat16 : sdk::DType::kBFloat16;
  const struct {
    const char* name;
    sdk::MatrixBox box;
    geglu_mlp::TensorMap* map;
  } matrices[] = {
      {call.a_name,
       {gemm.a, dtype, shape.m, shape.k, plan.a_box_rows, geglu_mlp::kDepth},
       &arguments.a},
      {call.b0_name,
       {gemm.b0, dtype, shape.n, shape.k, plan.b_rows, geglu_mlp::kDepth, weights_are_shared},
       &arguments.b0},
      {"up",
       {gemm.b1, dtype, shape.n, shape.k, plan.b_rows, geglu_mlp::kDepth, weights_are_shared},
       &arguments.b1},
      {shape.gated ? "h" : "y",
       {gemm.out, dtype, shape.m, shape.n, plan.out_rows, plan.out_columns},
       &arguments.out},
  };
  for (const auto& matrix : matrices) {
    if (matrix.box.data == nullptr || matrix.box.box_rows == 0) continue;
    const int32_t status = gpu.map_matrix(matrix.box, matrix.name, matrix.map, error);
    if (status != KILN_OK) return status;
  }
  arguments.bias0 = gemm.bias0;
  arguments.bias1 = gemm.bias1;
  arguments.out_data = gemm.out;
  arguments.m = shape.m;
  arguments.n = shape.n;
  arguments.k_blocks = static_cast<unsigned>(geglu_mlp::tiles_of(shape.k, geglu_mlp::kDepth));
  arguments.tiles_m = plan.tiles_m;
  arguments.tiles_n = plan.tiles_n;
  arguments.panel = plan.panel;
  arguments.a_rows = plan.a_rows;
  arguments.quads = plan.quads;
  arguments.gating = gemm.gating;
  arguments.across = plan.choice.across ? 1 : 0;
  arguments.early = early ? 1 : 0;
  void* pointers[] = {&arguments};
  const sdk::Launch launch{
      .grid = {plan.ctas}, .threads = tile.threads, .cluster = plan.cluster, .overlap = true};
  return gpu.launch(plan.kernel, launch, stream, pointers, error);
}

struct PointwiseLaunch {
  PointwiseShape shape;
  PointwiseArguments arguments;
};

// Puts one tensor into the arguments, and its alignment and gaps into the shape.
template <class Data>
void add_tensor(PointwiseLaunch& launch, const sdk::Tensor& tensor, Data*& data,
                long long& stride) {
  data = tensor.data;
  stride = tensor.stride[0];
  const int64_t stride_bytes = tensor.stride[0] * bytes_of(launch.shape.element);
  const bool one_row = launch.shape.rows <= 1;
  int64_t& alignment = launch.shape.alignment;
  while (!is_aligned(tensor.data, static_cast<uintptr_t>(alignment)) ||
         (!one_row && stride_bytes % alignment != 0)) {
    alignment /= 2;
  }
  launch.shape.compact =
      launch.shape.compact && (one_row || tensor.stride[0] == launch.shape.columns);
}

PointwiseLaunch pointwise_launch(const PointwiseCall& call) {
  PointwiseLaunch launch = {};
  const bool backward = call.grad_out.present;
  launch.shape = {backward, element_of(call.gate.dtype), call.rows, call.columns,
                  true,     geglu_mlp::kWideBytes};
  PointwiseArguments& arguments = launch.arguments;
  arguments.gating = call.gating;
  add_tensor(launch, call.gate, arguments.gate, arguments.gate_stride);
  add_tensor(launch, call.up, arguments.up, arguments.up_stride);
  add_tensor(launch, call.out, arguments.out0, arguments.out0_stride);
  if (backward) {
    add_tensor(launch, call.grad_out, arguments.grad_out, arguments.grad_out_stride);
    add_tensor(launch, call.grad_up, arguments.out1, arguments.out1_stride);
  }
  return launch;
}

CublasltPlan plan_by_cublaslt(const MlpCall& call, bool aligned) {
  return geglu_mlp::plan_cublaslt({needs_cublaslt(), call.M, call.D, call.H, aligned});
}

bool is_aligned_for_cublaslt(const MlpCall& call) {
  const sdk::Tensor* const tensors[] = {&call.x,         &call.gate,    &call.up,        &call.down,
                                        &call.gate_bias, &call.up_bias, &call.down_bias, &call.y};
  for (const sdk::Tensor* tensor : tensors) {
    if (!is_aligned(data_or_null(*tensor), geglu_mlp::kCublasltAlignment)) return false;
  }
  return true;
}

int32_t forward_by_cublaslt(const sdk::OnDevice& gpu, const MlpCall& call, const CublasltPlan& plan,
                            kiln_error* error) {
  CublasltHandle handle = nullptr;
  int32_t status = enter_cublaslt(gpu, &handle, error);
  if (status != KILN_OK) return status;
  char* const workspace = static_cast<char*>(call.workspace);
  const auto intermediate = [&](void* data) {
    return sdk::Tensor{true, call.x.dtype, data, {call.M, call.H}, {call.H, 1}};
  };
  const sdk::Tensor gated = intermediate(workspace);
  const sdk::Tensor up = intermediate(workspace + plan.up_offset);
  void* const scratch = workspace + plan.scratch_offset;
  const auto linear = [&](const char* name, int64_t in, int64_t out, const void* x,
                          const sdk::Tensor& weight, const sdk::Tensor& bias, void* y) {
    return launch_linear(
        handle, {name, call.x.dtype, call.M, in, out, x, weight.data, data_or_null(bias), y},
        scratch, call.stream, error);
  };
  status = linear("gate", call.D, call.H, call.x.data, call.gate, call.gate_bias, gated.data);
  if (status != KILN_OK) return status;
  status = linear("up", call.D, call.H, call.x.data, call.up, call.up_bias, up.data);
  if (status != KILN_OK) return status;

  // In place: a thread stores where it alone has read.
  status =
      pointwise({call, "forward", {}, gated, up, gated, {}, call.M, call.H, call.gating}, error);
  if (status != KILN_OK) return status;
  return linear("down", call.H, call.D, gated.data, call.down, call.down_bias, call.y.data);
}

}  // namespace

size_t mlp_workspace_bytes(const MlpCall& call) {
  // Addresses are not known yet: with others than aligned ones less of it is used.
  return plan_by_cublaslt(call, true).workspace_bytes;
}

int32_t mlp(const MlpCall& call, kiln_error* error) {
  const Element element = element_of(call.x.dtype);
  if (element == Element::kFloat32) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "forward: x is float32; on a GPU it takes bfloat16 or float16 "
                     "(convert, or use a CPU variant)");
  }
  if (call.M == 0 || call.D == 0) return KILN_OK;
  sdk::OnDevice gpu;
  if (const int32_t status = gpu.enter(call.device, error); status != KILN_OK) return status;
  if (needs_cublaslt()) {
    const CublasltPlan plan = plan_by_cublaslt(call, is_aligned_for_cublaslt(call));
    if (plan.refused == nullptr) return forward_by_cublaslt(gpu, call, plan, error);
  }

  void* h = call.workspace;
  const bool x_aligned = call.D % 8 == 0 && is_aligned(call.x.data, 16) &&
                         is_aligned(call.gate.data, 16) && is_aligned(call.up.data, 16);
  GemmCall gated = {};
  gated.shape = {true, element, call.M, call.H, call.D, x_aligned, call.H % 2 == 0};
  gated.a_name = "x";
  gated.b0_name = "gate";
  gated.arguments.a = call.x.data;
  gated.arguments.b0 = call.gate.data;
  gated.arguments.b1 = call.up.data;
  gated.arguments.bias0 = data_or_null(call.gate_bias);
  gated.arguments.bias1 = data_or_null(call.up_bias);
  gated.arguments.out = h;
  gated.arguments.gating = call.gating;

  const bool h_aligned = call.H % 8 == 0 && is_aligned(call.down.data, 16);
  const bool paired = call.D % 2 == 0 && is_aligned(call.y.data, 4);
  GemmCall plain = {};
  plain.shape = {false, element, call.M, call.D, call.H, h_aligned, paired};
  plain.a_name = "h";
  plain.b0_name = "down";
  plain.arguments.a = h;
  plain.arguments.b0 = call.down.data;
  plain.arguments.bias0 = data_or_null(call.down_bias);
  plain.arguments.out = call.y.data;

  // Both or neither: the fast kernels of one read what those of the other wrote.
  const GpuFacts facts = facts_of(gpu);
  const Sm90Plan& gated_plan = plan_of(gated, facts);
  const Sm90Plan& plain_plan = plan_of(plain, facts);
  if (gated_plan.refused == nullptr && plain_plan.refused == nullptr &&
      gpu.has(gated_plan.kernel) && gpu.has(plain_plan.kernel)) {
    const int32_t status = launch_sm90(gpu, gated, gated_plan, true, call.stream, error);
    if (status != KILN_OK) return status;
    const bool early = starts_next_early(gated.shape, gated_plan, facts);
    return launch_sm90(gpu, plain, plain_plan, early, call.stream, error);
  }
  const int32_t status = launch_gemm(gpu, gated.shape, gated.arguments, call.stream, error);
  if (status != KILN_OK) return status;
  return launch_gemm(gpu, plain.shape, plain.arguments, call.stream, error);
}

int32_t pointwise(const PointwiseCall& call, kiln_error* error) {
  if (call.rows == 0 || call.columns == 0) return KILN_OK;
  sdk::OnDevice gpu;
  if (const int32_t status = gpu.enter(call.device, error); status != KILN_OK) return status;
  PointwiseLaunch launch = pointwise_launch(call);
  const PointwisePlan plan = plan_pointwise(launch.shape, facts_of(gpu));
  if (!plan.fits) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "%s: %lld rows of %lld elements need more CTAs than a grid has; "
                     "split the tensors into several calls",
                     call.op, static_cast<long long>(plan.rows),
                     static_cast<long long>(plan.columns));
  }
  launch.arguments.rows = plan.rows;
  launch.arguments.columns = plan.columns;
  launch.arguments.passing = plan.passing ? 1 : 0;
  void* pointers[] = {&launch.arguments};
  // A variant with kernels of SM 9.0 has the elementwise ones from the same compiler target: they
  // wait for the kernel ahead. In others they may be PTX of an older one, which does not.
  return gpu.launch(plan.kernel,
                    {.grid = {plan.grid_x, plan.grid_y, plan.grid_z},
                     .threads = geglu_mlp::kPointwiseThreads,
                     .overlap = gpu.has(geglu_mlp::kKernels)},
                    call.stream, pointers, error);
}

}  // namespace kiln::package

namespace kiln::sdk {

KernelList kernel_list() {
  return {package::kKernelTable, geglu_mlp::kAllKernels};
}

}  // namespace kiln::sdk
