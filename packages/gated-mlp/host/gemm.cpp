// SPDX-License-Identifier: Apache-2.0
//
#include "host/gemm.hpp"

namespace kiln::package {
namespace {

using gated_mlp::Element;
using gated_mlp::GemmArguments;
using gated_mlp::GemmPlan;
using gated_mlp::GemmShape;
using gated_mlp::GpuFacts;
using gated_mlp::kTiles;
using gated_mlp::Sm90KeptArguments;
using gated_mlp::Sm90Plan;

// In the order of gemm_kernel(), pointwise_kernel(), plan.h's of backward, and sm90_plan.h's.
#define KILN_TILES(kind, type)                                               \
  {"smxx_" #kind, #kind "_" #type "_256x128", kTiles[0].shared_bytes},       \
      {"smxx_" #kind, #kind "_" #type "_128x128x3", kTiles[1].shared_bytes}, \
      {"smxx_" #kind, #kind "_" #type "_128x128x4", kTiles[2].shared_bytes}, \
      {"smxx_" #kind, #kind "_" #type "_64x64", kTiles[3].shared_bytes},     \
      {"smxx_" #kind, #kind "_" #type "_32x32", kTiles[4].shared_bytes},     \
      {"smxx_" #kind, #kind "_" #type "_64x64_any", kTiles[5].shared_bytes}, \
      {"smxx_decode", #kind "_" #type "_decode4", kTiles[6].shared_bytes},   \
      {"smxx_decode", #kind "_" #type "_decode8", kTiles[7].shared_bytes},
#define KILN_POINTWISE(kind, backward, type, Element, width) \
  {"smxx_pointwise", "pointwise_" #kind "_" #type "x" #width, 0},
#define KILN_BACKWARD(name) {"smxx_backward", name, 0},
#define KILN_SM90(family, kind, shape, Tile) \
  {"sm90_" #family, #family "_" kind "_" #shape, gated_mlp::Tile::kSharedBytes},
#define KILN_GATED_BF16(family, shape, Tile) KILN_SM90(family, "gated_bf16", shape, Tile)
#define KILN_GATED_F16(family, shape, Tile) KILN_SM90(family, "gated_f16", shape, Tile)
#define KILN_PLAIN_BF16(family, shape, Tile) KILN_SM90(family, "plain_bf16", shape, Tile)
#define KILN_PLAIN_F16(family, shape, Tile) KILN_SM90(family, "plain_f16", shape, Tile)
#define KILN_KEPT_BF16(family, shape, Tile) KILN_SM90(family, "kept_bf16", shape, Tile)
#define KILN_KEPT_F16(family, shape, Tile) KILN_SM90(family, "kept_f16", shape, Tile)
#define KILN_TOKENS_BF16(family, shape, Tile) KILN_SM90(family, "tokens_bf16", shape, Tile)
#define KILN_TOKENS_F16(family, shape, Tile) KILN_SM90(family, "tokens_f16", shape, Tile)
#define KILN_WEIGHTS_BF16(family, shape, Tile) KILN_SM90(family, "weights_bf16", shape, Tile)
#define KILN_WEIGHTS_F16(family, shape, Tile) KILN_SM90(family, "weights_f16", shape, Tile)
#define KILN_SUMS(name) {"sm90_gradients", name, 0},

constexpr sdk::KernelSpec kKernelTable[] = {
    KILN_TILES(gated, bf16) KILN_TILES(gated, f16)  //
    KILN_TILES(plain, bf16) KILN_TILES(plain, f16)  //
    KILN_POINTWISES(KILN_POINTWISE)                 //
    KILN_BACKWARD("backward_transpose")             //
    KILN_BACKWARD("backward_gated_bf16") KILN_BACKWARD("backward_gated_f16")
        KILN_BACKWARD("backward_row_sums_bf16") KILN_BACKWARD("backward_row_sums_f16")  //
    {"smxx_padded", "padded_copies", 0},                                                //
    KILN_SWAPPED_KERNELS(KILN_GATED_BF16) KILN_GATED_TILES(KILN_GATED_BF16)             //
    KILN_SWAPPED_KERNELS(KILN_GATED_F16) KILN_GATED_TILES(KILN_GATED_F16)               //
    KILN_SWAPPED_KERNELS(KILN_PLAIN_BF16) KILN_PLAIN_TILES(KILN_PLAIN_BF16)             //
    KILN_SWAPPED_KERNELS(KILN_PLAIN_F16) KILN_PLAIN_TILES(KILN_PLAIN_F16)               //
    KILN_KEPT_PREFILLS(KILN_KEPT_BF16) KILN_KEPT_PREFILLS(KILN_KEPT_F16)                //
    KILN_TOKEN_GRADIENTS(KILN_TOKENS_BF16) KILN_TOKEN_GRADIENTS(KILN_TOKENS_F16)        //
    KILN_WEIGHT_GRADIENTS(KILN_WEIGHTS_BF16) KILN_WEIGHT_GRADIENTS(KILN_WEIGHTS_F16)    //
    KILN_GATED_GRADIENTS(KILN_GATED_BF16) KILN_GATED_GRADIENTS(KILN_GATED_F16)          //
    KILN_SUMS("gradients_sums_bf16") KILN_SUMS("gradients_sums_f16")};
static_assert(sizeof(kKernelTable) / sizeof(kKernelTable[0]) == gated_mlp::kAllKernels);
#undef KILN_TILES
#undef KILN_POINTWISE
#undef KILN_BACKWARD
#undef KILN_SM90
#undef KILN_GATED_BF16
#undef KILN_GATED_F16
#undef KILN_PLAIN_BF16
#undef KILN_PLAIN_F16
#undef KILN_KEPT_BF16
#undef KILN_KEPT_F16
#undef KILN_TOKENS_BF16
#undef KILN_TOKENS_F16
#undef KILN_WEIGHTS_BF16
#undef KILN_WEIGHTS_F16
#undef KILN_SUMS

bool is_mapped(const GemmCall& call) {
  const GemmArguments& gemm = call.arguments;
  const void* const all[] = {gemm.a,        gemm.b0,       gemm.b1,    gemm.out,
                             gemm.residual, gemm.gate_out, gemm.up_out};
  for (const void* one : all) {
    if (!is_aligned(one, 16)) return false;
  }
  return true;
}

}  // namespace

int32_t read_pins(const char* op, const char* text, const gated_mlp::Pinnable& pinnable,
                  gated_mlp::Pins* pins, kiln_error* error) {
  char wrong[sizeof(error->text)];
  if (gated_mlp::read_pins(text, pinnable, pins, {wrong, sizeof(wrong)})) return KILN_OK;
  return sdk::fail(error, KILN_INVALID_ARGUMENT, "%s: %s", op, wrong);
}

Element element_of(sdk::DType dtype) {
  switch (dtype) {
    case sdk::DType::kFloat32:
      return Element::kFloat32;
    case sdk::DType::kFloat16:
      return Element::kFloat16;
    case sdk::DType::kBFloat16:
      return Element::kBFloat16;
    default:  // the schema allows no other
      return Element::kFloat32;
  }
}

GpuFacts facts_of(const sdk::OnDevice& gpu) {
  return {gpu.facts().multiprocessors, gpu.facts().shared_bytes_per_block};
}

// A model calls with the same shapes again and again, and for some hundred rows a plan takes
// microseconds.
const Sm90Plan* find_sm90(const sdk::OnDevice& gpu, const GemmCall& call) {
  static thread_local struct {
    GemmShape shape;
    bool mapped = false;
    GpuFacts gpu;
    bool is_pinned = false;
    gated_mlp::Sm90Choice pinned;
    Sm90Plan plan;
  } planned[kProducts];
  auto& last = planned[static_cast<int>(call.product)];
  const bool mapped = is_mapped(call);
  const GpuFacts facts = facts_of(gpu);
  const bool is_pinned = call.pinned != nullptr;
  const gated_mlp::Sm90Choice pinned = is_pinned ? *call.pinned : gated_mlp::Sm90Choice{};
  if (!(last.shape == call.shape && last.mapped == mapped && last.gpu == facts &&
        last.is_pinned == is_pinned && last.pinned == pinned)) {
    last = {call.shape, mapped, facts,
            is_pinned,  pinned, plan_sm90(call.shape, mapped, facts, call.pinned)};
  }
  return last.plan.refused == nullptr && gpu.has(last.plan.kernel) ? &last.plan : nullptr;
}

int32_t launch_sm90(const sdk::OnDevice& gpu, const GemmCall& call, const Sm90Plan& plan,
                    Sm90Order order, void* stream, kiln_error* error) {
  const GemmShape& shape = call.shape;
  const GemmArguments& gemm = call.arguments;
  const gated_mlp::Sm90Tile& tile = gated_mlp::sm90_tile(shape.gated, plan.choice.tile);
  // In the other families each CTA reads weights of its own, once.
  const bool weights_are_shared = tile.family == gated_mlp::Sm90Family::kPrefill;
  Sm90KeptArguments arguments = {};  // other kernels take the first part of it
  const sdk::DType dtype =
      shape.element == Element::kFloat16 ? sdk::DType::kFloat16 : sdk::DType::kBFloat16;
  const struct {
    const char* name;
    sdk::MatrixBox box;
    gated_mlp::TensorMap* map;
  } matrices[] = {
      {call.a_name,
       {gemm.a, dtype, shape.m, shape.k, plan.a_box_rows, gated_mlp::kDepth},
       &arguments.a},
      {call.a_name,
       {gemm.a, dtype, shape.m, shape.k, plan.tail_box_rows, gated_mlp::kDepth},
       &arguments.a_tail},
      {call.b0_name,
       {gemm.b0, dtype, shape.n, shape.k, plan.b_rows, gated_mlp::kDepth, weights_are_shared},
       &arguments.b0},
      {"up",
       {gemm.b1, dtype, shape.n, shape.k, plan.b_rows, gated_mlp::kDepth, weights_are_shared},
       &arguments.b1},
      {call.out_name,
       {gemm.out, dtype, shape.m, shape.n, plan.out_rows, plan.out_columns},
       &arguments.out},
      {"gate_out",
       {gemm.gate_out, dtype, shape.m, shape.n, plan.out_rows, plan.out_columns},
       &arguments.gate_out},
      {"up_out",
       {gemm.up_out, dtype, shape.m, shape.n, plan.out_rows, plan.out_columns},
       &arguments.up_out},
  };
  for (const auto& matrix : matrices) {
    if (matrix.box.data == nullptr || matrix.box.box_rows == 0) continue;
    const int32_t status = gpu.map_matrix(matrix.box, matrix.name, matrix.map, error);
    if (status != KILN_OK) return status;
  }
  arguments.bias0 = gemm.bias0;
  arguments.bias1 = gemm.bias1;
  arguments.residual = gemm.residual;
  arguments.out_data = gemm.out;
  arguments.m = shape.m;
  arguments.n = shape.n;
  arguments.k_blocks = static_cast<unsigned>(gated_mlp::tiles_of(shape.k, gated_mlp::kDepth));
  arguments.tiles_m = plan.tiles_m;
  arguments.tiles_n = plan.tiles_n;
  arguments.panel = plan.panel;
  arguments.tail_from = plan.tail_from;
  arguments.pieces = plan.pieces;
  arguments.tail_rows = plan.tail_rows;
  arguments.tile_rows = plan.tile_rows;
  arguments.a_rows = plan.a_rows;
  arguments.quads = plan.quads;
  arguments.gating = gemm.gating;
  arguments.across = plan.choice.across ? 1 : 0;
  arguments.early = order.early ? 1 : 0;
  void* pointers[] = {&arguments};
  const sdk::Launch launch{.grid = {plan.ctas},
                           .threads = tile.threads,
                           .cluster = plan.cluster,
                           .overlap = order.overlap};
  return gpu.launch(plan.kernel, launch, stream, pointers, error);
}

int32_t launch_portable(const sdk::OnDevice& gpu, const GemmCall& call, void* stream,
                        kiln_error* error) {
  GemmShape shape = call.shape;
  shape.aligned = shape.n % 8 == 0 && shape.k % 8 == 0 && is_mapped(call);
  const GemmPlan plan = plan_gemm(shape, facts_of(gpu));
  if (!plan.fits) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "%s: %lld x %lld outputs need more than 2^31 - 1 tiles; "
                     "split x into several calls",
                     call.op, static_cast<long long>(shape.m), static_cast<long long>(shape.n));
  }
  if (plan.ctas == 0) return KILN_OK;
  GemmArguments arguments = call.arguments;
  arguments.m = shape.m;
  arguments.n = shape.n;
  arguments.k = shape.k;
  arguments.tiles_m = plan.tiles_m;
  arguments.tiles_n = plan.tiles_n;
  arguments.panel = plan.panel;
  arguments.adds = shape.adds ? 1 : 0;
  void* pointers[] = {&arguments};
  return gpu.launch(plan.kernel, {plan.ctas}, plan.threads, stream, pointers, error);
}

int32_t fail_pinned(const sdk::OnDevice& gpu, const GemmCall& call, kiln_error* error) {
  const Sm90Plan plan = plan_sm90(call.shape, is_mapped(call), facts_of(gpu), call.pinned);
  return sdk::fail(error, KILN_UNSUPPORTED,
                   "%s: kernels names %s for the product with %s, which it does not compute: %s",
                   call.op, gated_mlp::sm90_tile(call.shape.gated, call.pinned->tile).name,
                   call.b0_name,
                   plan.refused != nullptr ? plan.refused : "this variant has no such kernel");
}

int32_t launch_gemm(const sdk::OnDevice& gpu, const GemmCall& call, void* stream,
                    kiln_error* error) {
  if (call.shape.m == 0 || call.shape.n == 0) return KILN_OK;
  const Sm90Plan* const plan = find_sm90(gpu, call);
  return plan != nullptr ? launch_sm90(gpu, call, *plan, {}, stream, error)
                         : launch_portable(gpu, call, stream, error);
}

}  // namespace kiln::package

namespace kiln::sdk {

KernelList kernel_list() {
  return {package::kKernelTable, gated_mlp::kAllKernels};
}

}  // namespace kiln::sdk
