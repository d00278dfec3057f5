// SPDX-License-Identifier: Apache-2.0
//
// The host side of the GPU variants: what is launched, and how.
//
//   workspace of forward    h [M, 16 HR] in the dtype of x | where plan.h splits down's k: its sums
//                           [splits, M, D], fp32
#include <kiln/sdk/device.hpp>

#include "arguments.h"
#include "package.gen.hpp"
#include "plan.h"
#include "shapes.hpp"

namespace kiln::sdk {

#define KILN_DECODE(kind, type, matrices)                   \
  {"smxx_decode", "decode_" #kind "_" #type "_int4_x1",     \
   quantized_mlp::decode_bytes(matrices, 4, 1)},            \
      {"smxx_decode", "decode_" #kind "_" #type "_int4_x2", \
       quantized_mlp::decode_bytes(matrices, 4, 2)},        \
      {"smxx_decode", "decode_" #kind "_" #type "_int8_x1", \
       quantized_mlp::decode_bytes(matrices, 8, 1)},        \
  {                                                         \
    "smxx_decode", "decode_" #kind "_" #type "_int8_x2",    \
        quantized_mlp::decode_bytes(matrices, 8, 2)         \
  }
#define KILN_TILED(kind, type)                                           \
  {"smxx_tiled", "tiled_" #kind "_" #type "_int4",                       \
   quantized_mlp::kTiledStages * quantized_mlp::tiled_stage_bytes(4)},   \
  {                                                                      \
    "smxx_tiled", "tiled_" #kind "_" #type "_int8",                      \
        quantized_mlp::kTiledStages* quantized_mlp::tiled_stage_bytes(8) \
  }

KernelList kernel_list() {
  static const KernelSpec kernels[] = {KILN_DECODE(gated, bf16, 2),
                                       KILN_DECODE(gated, f16, 2),  //
                                       KILN_DECODE(plain, bf16, 1),
                                       KILN_DECODE(plain, f16, 1),  //
                                       KILN_TILED(gated, bf16),
                                       KILN_TILED(gated, f16),  //
                                       KILN_TILED(plain, bf16),
                                       KILN_TILED(plain, f16),             //
                                       {"smxx_tiled", "finish_bf16", 0},   //
                                       {"smxx_tiled", "finish_f16", 0},    //
                                       {"smxx_pack", "pack_codes", 0},     //
                                       {"smxx_pack", "pack_groups", 0},    //
                                       {"smxx_pack", "unpack_codes", 0},   //
                                       {"smxx_pack", "unpack_groups", 0},  //
                                       {"sm90_overlap", "kernels_wait", 0}};
  static_assert(sizeof(kernels) / sizeof(kernels[0]) == quantized_mlp::kKernels);
  return {kernels, quantized_mlp::kKernels};
}

}  // namespace kiln::sdk

namespace kiln::package {
namespace {

using quantized_mlp::check_mlp;
using quantized_mlp::kTileRows;
using quantized_mlp::Matrix;
using quantized_mlp::MatrixArguments;
using quantized_mlp::Mlp;
using quantized_mlp::PackCodesArguments;
using quantized_mlp::parts_of;
using quantized_mlp::plan_product;
using quantized_mlp::ProductArguments;
using quantized_mlp::ProductPlan;
using quantized_mlp::Source;
using quantized_mlp::UnpackCodesArguments;

constexpr uint32_t kThreads = 256;
constexpr int64_t kMostBlocks = 65535;  // of a grid's y

bool is_aligned(const void* address, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}
const void* data_or_null(const sdk::Tensor& tensor) {
  return tensor.present ? tensor.data : nullptr;
}

ProductPlan plan_gated(const ForwardArguments& call) {
  const bool invariant = call.batch_invariant == ForwardArguments::BatchInvariant::kYes;
  return plan_product(true, call.M, call.HR, call.DK, invariant);
}
ProductPlan plan_down(const ForwardArguments& call) {
  const bool invariant = call.batch_invariant == ForwardArguments::BatchInvariant::kYes;
  return plan_product(false, call.M, call.DR, call.HK, invariant);
}

size_t hidden_bytes(const ForwardArguments& call) {
  return (static_cast<size_t>(call.M * call.HR) * kTileRows * 2 + 255) / 256 * 256;
}

int32_t check_alignment(const char* op, const char* name, const Matrix& matrix, kiln_error* error) {
  if (is_aligned(matrix.codes, 16) && is_aligned(matrix.scales, 4) && is_aligned(matrix.zeros, 4)) {
    return KILN_OK;
  }
  return sdk::fail(error, KILN_INVALID_ARGUMENT,
                   "%s: %s, its scales or its zeros begin at an odd address; expected multiples of "
                   "16, 4 and 4 bytes",
                   op, name);
}

// One product, but for its plan.
struct Product {
  bool gated;
  bool float16;
  int bits;
  ProductArguments arguments;
};

void set_matrix(ProductArguments* arguments, const Matrix& first, const Matrix& second) {
  arguments->b[0] = {first.codes, first.scales, first.zeros};
  arguments->b[1] = {second.codes, second.scales, second.zeros};
  arguments->row_tiles = static_cast<int>(first.row_tiles);
  arguments->depth_tiles = static_cast<int>(first.depth_tiles);
  arguments->groups = static_cast<int>(first.groups);
  arguments->shift = first.shift;
}

// CTAs along the row tiles, so that all run at once and each has as many tiles as the others, or
// one less.
uint32_t share_out(const sdk::OnDevice& gpu, const ProductPlan& plan) {
  const int64_t at_once = int64_t{quantized_mlp::kDecodeCtas} * gpu.facts().multiprocessors;
  const int64_t most = at_once > plan.token_blocks ? at_once / plan.token_blocks : 1;
  const int64_t turns = parts_of(plan.row_blocks, most < kMostBlocks ? most : kMostBlocks);
  return static_cast<uint32_t>(parts_of(plan.row_blocks, turns));
}

int32_t launch(const sdk::OnDevice& gpu, const char* op, Product product, const ProductPlan& plan,
               void* stream, kiln_error* error) {
  if (plan.row_blocks == 0 || product.arguments.n == 0) return KILN_OK;
  const bool is_deep = product.arguments.k > INT32_MAX / 2;
  if (is_deep || (!plan.decodes && plan.row_blocks > kMostBlocks)) {
    return sdk::fail(
        error, KILN_UNSUPPORTED,
        "%s: %lld x %lld outputs of %lld columns need more CTAs than a grid has, or count "
        "columns beyond 2^30; split x into several calls",
        op, product.arguments.m, product.arguments.n, product.arguments.k);
  }
  product.arguments.splits = plan.splits;
  const auto tokens = static_cast<uint32_t>(plan.token_blocks);
  const auto rows = plan.decodes ? share_out(gpu, plan) : static_cast<uint32_t>(plan.row_blocks);
  void* pointers[] = {&product.arguments};
  const sdk::Grid grid{tokens, rows, static_cast<uint32_t>(plan.splits)};
  const bool overlap = gpu.has(quantized_mlp::kKernelsWait);
  const int kernel = kernel_of(plan, product.gated, product.float16, product.bits);
  const int32_t status = gpu.launch(kernel, {.grid = grid, .threads = kThreads, .overlap = overlap},
                                    stream, pointers, error);
  if (status != KILN_OK || product.arguments.parts == nullptr) return status;
  const int64_t pairs = product.arguments.m * ((product.arguments.n + 1) / 2);
  const auto blocks = static_cast<uint32_t>(parts_of(pairs, kThreads));
  return gpu.launch(quantized_mlp::kFinish + (product.float16 ? 1 : 0),
                    {.grid = {blocks}, .threads = kThreads, .overlap = overlap}, stream, pointers,
                    error);
}

Product gated_of(const ForwardArguments& call, const Mlp& mlp) {
  Product one{true, call.x.dtype == sdk::DType::kFloat16, mlp.gate.bits, {}};
  ProductArguments& arguments = one.arguments;
  set_matrix(&arguments, mlp.gate, mlp.up);
  arguments.a = call.x.data;
  arguments.bias0 = data_or_null(call.gate_bias);
  arguments.bias1 = data_or_null(call.up_bias);
  arguments.out = call.workspace;
  arguments.m = call.M;
  arguments.n = mlp.hidden;
  arguments.k = call.D;
  arguments.bfloat16_scales = call.gate_scales.dtype == sdk::DType::kBFloat16 ? 1 : 0;
  arguments.aligned = call.D % 8 == 0 && is_aligned(call.x.data, 16) ? 1 : 0;
  arguments.paired = 1;
  arguments.gating = mlp.gating;
  return one;
}

Product down_of(const ForwardArguments& call, const Mlp& mlp, const ProductPlan& plan) {
  Product one{false, call.x.dtype == sdk::DType::kFloat16, mlp.down.bits, {}};
  ProductArguments& arguments = one.arguments;
  set_matrix(&arguments, mlp.down, mlp.down);
  arguments.a = call.workspace;
  arguments.bias0 = data_or_null(call.down_bias);
  arguments.residual = data_or_null(call.residual);
  arguments.out = call.y.data;
  if (plan.splits > 1) {
    arguments.parts =
        reinterpret_cast<float*>(static_cast<char*>(call.workspace) + hidden_bytes(call));
  }
  arguments.m = call.M;
  arguments.n = call.D;
  arguments.k = mlp.hidden;
  arguments.bfloat16_scales = call.down_scales.dtype == sdk::DType::kBFloat16 ? 1 : 0;
  arguments.aligned = 1;
  arguments.paired = call.D % 2 == 0 && is_aligned(call.y.data, 4) ? 1 : 0;
  return one;
}

// `items` threads.
int32_t launch_pack(const sdk::OnDevice& gpu, int kernel, int64_t items, void* arguments,
                    const sdk::Placement& call, kiln_error* error) {
  if (items == 0) return KILN_OK;
  const int64_t blocks = parts_of(items, quantized_mlp::kPackThreads);
  if (blocks > INT32_MAX) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "a matrix of %lld elements needs more CTAs than a grid has",
                     static_cast<long long>(items));
  }
  void* pointers[] = {arguments};
  return gpu.launch(kernel, {static_cast<uint32_t>(blocks)}, quantized_mlp::kPackThreads,
                    call.stream, pointers, error);
}

}  // namespace

size_t forward_workspace_bytes(const ForwardArguments& call) {
  const ProductPlan down = plan_down(call);
  const size_t sums = down.splits > 1 ? sizeof(float) * static_cast<size_t>(down.splits) *
                                            static_cast<size_t>(call.M * call.D)
                                      : 0;
  return hidden_bytes(call) + sums;
}

int32_t forward(const ForwardArguments& call, kiln_error* error) {
  Mlp mlp;
  int32_t status = check_mlp(call, &mlp, error);
  if (status == KILN_OK) status = check_alignment("forward", "gate", mlp.gate, error);
  if (status == KILN_OK) status = check_alignment("forward", "up", mlp.up, error);
  if (status == KILN_OK) status = check_alignment("forward", "down", mlp.down, error);
  if (status != KILN_OK || call.M == 0 || call.D == 0) return status;
  sdk::OnDevice gpu;
  status = gpu.enter(call.device, error);
  if (status != KILN_OK) return status;
  status = launch(gpu, "forward", gated_of(call, mlp), plan_gated(call), call.stream, error);
  if (status != KILN_OK) return status;
  const ProductPlan down = plan_down(call);
  return launch(gpu, "forward", down_of(call, mlp, down), down, call.stream, error);
}

size_t pack_workspace_bytes(const PackArguments&) {
  return 0;
}

int32_t pack(const PackArguments& call, kiln_error* error) {
  PackCodesArguments arguments = {};
  int32_t status = check_pack(call, &arguments.source, error);
  if (status != KILN_OK) return status;
  sdk::OnDevice gpu;
  status = gpu.enter(call.device, error);
  if (status != KILN_OK) return status;
  arguments.packed = static_cast<unsigned*>(call.packed.data);
  arguments.packed_scales = static_cast<unsigned short*>(call.packed_scales.data);
  arguments.row_tiles = call.NR;
  arguments.depth_tiles = call.KT;
  status = launch_pack(gpu, quantized_mlp::kPackCodes, call.NR * call.KT * call.T / 4, &arguments,
                       call, error);
  if (status != KILN_OK) return status;
  return launch_pack(gpu, quantized_mlp::kPackGroups, call.NR * call.G * kTileRows, &arguments,
                     call, error);
}

size_t pack_zeros_workspace_bytes(const PackZerosArguments&) {
  return 0;
}

int32_t pack_zeros(const PackZerosArguments& call, kiln_error* error) {
  PackCodesArguments arguments = {};
  int32_t status = check_pack_zeros(call, &arguments.source, error);
  if (status != KILN_OK) return status;
  sdk::OnDevice gpu;
  status = gpu.enter(call.device, error);
  if (status != KILN_OK) return status;
  arguments.packed_zeros = static_cast<unsigned char*>(call.packed_zeros.data);
  arguments.row_tiles = call.NR;
  return launch_pack(gpu, quantized_mlp::kPackGroups, call.NR * call.G * kTileRows, &arguments,
                     call, error);
}

size_t unpack_workspace_bytes(const UnpackArguments&) {
  return 0;
}

int32_t unpack(const UnpackArguments& call, kiln_error* error) {
  Matrix matrix;
  int32_t status = check_unpack(call, &matrix, error);
  if (status != KILN_OK) return status;
  sdk::OnDevice gpu;
  status = gpu.enter(call.device, error);
  if (status != KILN_OK) return status;
  UnpackCodesArguments arguments = {};
  arguments.from = {matrix.codes, matrix.scales, matrix.zeros};
  arguments.bits = matrix.bits;
  arguments.shift = matrix.shift;
  arguments.bfloat16_scales = call.packed_scales.dtype == sdk::DType::kBFloat16 ? 1 : 0;
  arguments.weight_dtype = call.weight.dtype == sdk::DType::kFloat32   ? 0
                           : call.weight.dtype == sdk::DType::kFloat16 ? 1
                                                                       : 2;
  arguments.rows = call.N;
  arguments.columns = call.K;
  arguments.depth_tiles = matrix.depth_tiles;
  arguments.groups = matrix.groups;
  arguments.codes = static_cast<unsigned char*>(call.codes.data);
  arguments.scales = call.scales.present ? static_cast<unsigned short*>(call.scales.data) : nullptr;
  arguments.zeros = call.zeros.present ? static_cast<unsigned char*>(call.zeros.data) : nullptr;
  arguments.weight = call.weight.present ? call.weight.data : nullptr;
  status = launch_pack(gpu, quantized_mlp::kUnpackCodes, call.N * call.K, &arguments, call, error);
  if (status != KILN_OK) return status;
  return launch_pack(gpu, quantized_mlp::kUnpackGroups, call.N * matrix.groups, &arguments, call,
                     error);
}

}  // namespace kiln::package
