// SPDX-License-Identifier: Apache-2.0
//
// The host side of the GPU variants: what is launched, and how.
//
//   workspace of forward    h [M, 16 HR] in the dtype of x | where plan.h splits k: the sums of the
//                           parts, fp32, of one product after the other
//   of the wide kernels     x, then h, as blocks of 64 tokens and 64 columns | sums
//   of the expanded ones    h | the weights of a chunk, or two, as numbers of 16 bits
//   x with a norm           at the end, [M, D] in its dtype, where no kernel norms it on its way
//   activations of e4m3     of wide8 x, then h, as blocks of 64 tokens and 128 columns | sums | the
//                           scales of x, then of h; else x and h in x's dtype, rounded | sums
#include <kiln/sdk/device.hpp>

#include <algorithm>

#include "expanded.h"
#include "expanded.hpp"
#include "float8.h"
#include "package.gen.hpp"
#include "plan.h"
#include "shapes.hpp"

namespace kiln::sdk {

// For one and two tiles or blocks of tokens.
#define KILN_TWO(image, name, bytes_of_one, bytes_of_two)   \
  KernelSpec{image, name "_x1", bytes_of_one}, KernelSpec { \
    image, name "_x2", bytes_of_two                         \
  }
#define KILN_DECODE(name, bits, matrices)                                                 \
  KILN_TWO("smxx_decode", "decode_" name, quantized_mlp::decode_bytes(matrices, bits, 1), \
           quantized_mlp::decode_bytes(matrices, bits, 2))
#define KILN_DECODES(name, matrices)                                              \
  KILN_DECODE(name "_int4", 4, matrices), KILN_DECODE(name "_int8", 8, matrices), \
      KILN_DECODE(name "_e4m3", 8, matrices)
#define KILN_TILED(name, bits)                                              \
  KernelSpec {                                                              \
    "smxx_tiled", "tiled_" name,                                            \
        quantized_mlp::kTiledStages* quantized_mlp::tiled_stage_bytes(bits) \
  }
#define KILN_TILEDS(name) \
  KILN_TILED(name "_int4", 4), KILN_TILED(name "_int8", 8), KILN_TILED(name "_e4m3", 8)
#define KILN_WIDE_OF(name, bits, tokens)                                           \
  KernelSpec {                                                                     \
    "sm90_wide", "wide_" name "_" #tokens, quantized_mlp::wide_bytes(bits, tokens) \
  }
#define KILN_WIDE_SIZES(name, bits) \
  KILN_WIDE_OF(name, bits, 32), KILN_WIDE_OF(name, bits, 64), KILN_WIDE_OF(name, bits, 128)
#define KILN_WIDES(name)                                              \
  KILN_WIDE_SIZES(name "_int4", 4), KILN_WIDE_SIZES(name "_int8", 8), \
      KILN_WIDE_SIZES(name "_e4m3", 8)
#define KILN_WIDE8(name)                                               \
  KILN_TWO("sm90_wide8", "wide8_" name, quantized_mlp::wide8_bytes(1), \
           quantized_mlp::wide8_bytes(2))
#define KILN_WIDES8(name) KILN_WIDE8(name "_rows"), KILN_WIDE8(name "_blocks")

#define KILN_NORM(name)                                                      \
  KernelSpec {                                                               \
    "smxx_decode_normed", "decode_normed_" name, quantized_mlp::kNormedBytes \
  }
#define KILN_NORMS(name) KILN_NORM(name "_int4"), KILN_NORM(name "_int8"), KILN_NORM(name "_e4m3")

#define KILN_EXPAND(name)              \
  KernelSpec {                         \
    "smxx_expanded", "expand_" name, 0 \
  }
#define KILN_EXPANDS(type) \
  KILN_EXPAND(type "_int4"), KILN_EXPAND(type "_int8"), KILN_EXPAND(type "_e4m3")
#define KILN_EXPANDED_OF(image, name, Tile)                    \
  KernelSpec {                                                 \
    image "_expanded", name, quantized_mlp::Tile::kSharedBytes \
  }
#define KILN_EXPANDED(image, name, Tile)                \
  KILN_EXPANDED_OF(image, name "gated_bf16", Tile),     \
      KILN_EXPANDED_OF(image, name "gated_f16", Tile),  \
      KILN_EXPANDED_OF(image, name "plain_bf16", Tile), \
      KILN_EXPANDED_OF(image, name "plain_f16", Tile)

KernelList kernel_list() {
  static const KernelSpec kernels[] = {KILN_DECODES("gated_bf16", 2),
                                       KILN_DECODES("gated_f16", 2),
                                       KILN_DECODES("plain_bf16", 1),
                                       KILN_DECODES("plain_f16", 1),
                                       KILN_TILEDS("gated_bf16"),
                                       KILN_TILEDS("gated_f16"),
                                       KILN_TILEDS("plain_bf16"),
                                       KILN_TILEDS("plain_f16"),
                                       {"smxx_tiled", "finish_bf16", 0},   //
                                       {"smxx_tiled", "finish_f16", 0},    //
                                       {"smxx_pack", "pack_codes", 0},     //
                                       {"smxx_pack", "pack_groups", 0},    //
                                       {"smxx_pack", "unpack_codes", 0},   //
                                       {"smxx_pack", "unpack_groups", 0},  //
                                       {"sm90_overlap", "kernels_wait", 0},
                                       {"sm90_wide", "arrange", 0},  //
                                       KILN_WIDES("gated_bf16"),
                                       KILN_WIDES("gated_f16"),
                                       KILN_WIDES("plain_bf16"),
                                       KILN_WIDES("plain_f16"),
                                       {"sm90_wide8", "arrange8_bf16", 0},  //
                                       {"sm90_wide8", "arrange8_f16", 0},   //
                                       KILN_WIDES8("gated_bf16"),
                                       KILN_WIDES8("gated_f16"),
                                       KILN_WIDES8("plain_bf16"),
                                       KILN_WIDES8("plain_f16"),
                                       {"smxx_tiled", "round8_bf16", 0},  //
                                       {"smxx_tiled", "round8_f16", 0},
                                       {"sm90_wide", "sum_gated_bf16", 0},
                                       {"sm90_wide", "sum_gated_f16", 0},
                                       {"sm90_wide", "sum_plain_bf16", 0},
                                       {"sm90_wide", "sum_plain_f16", 0},
                                       {"sm90_wide8", "sum_gated8_bf16", 0},
                                       {"sm90_wide8", "sum_gated8_f16", 0},
                                       KILN_NORMS("bf16"),
                                       KILN_NORMS("f16"),
                                       {"smxx_tiled", "norm_rows_bf16", 0},
                                       {"smxx_tiled", "norm_rows_f16", 0},
                                       KILN_EXPANDS("bf16"),
                                       KILN_EXPANDS("f16"),
                                       KILN_EXPANDED("smxx", "expanded_", ExpandedTile),
                                       KILN_EXPANDED("sm90", "sm90_expanded_", Sm90ExpandedTile)};
  static_assert(sizeof(kernels) / sizeof(kernels[0]) == quantized_mlp::kKernels);
  return {kernels, quantized_mlp::kKernels};
}

}  // namespace kiln::sdk

namespace kiln::package {
namespace {

using quantized_mlp::ArrangeArguments;
using quantized_mlp::check_mlp;
using quantized_mlp::Codes;
using quantized_mlp::ExpandedPlan;
using quantized_mlp::kTileRows;
using quantized_mlp::Matrix;
using quantized_mlp::MatrixArguments;
using quantized_mlp::Mlp;
using quantized_mlp::NormArguments;
using quantized_mlp::NormedArguments;
using quantized_mlp::PackCodesArguments;
using quantized_mlp::parts_of;
using quantized_mlp::plan_product;
using quantized_mlp::ProductArguments;
using quantized_mlp::ProductPlan;
using quantized_mlp::Road;
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

bool is_float16(const ForwardArguments& call) {
  return call.x.dtype == sdk::DType::kFloat16;
}
bool rounds_activations(const ForwardArguments& call) {
  return call.input_dtype == ForwardArguments::InputDtype::kFloat8E4m3fn;
}

// Whether wide8 has the groups of a matrix: one of a whole row, or of 128.
bool is_for_wide8(int64_t groups, int64_t tiles) {
  return groups == 1 || groups == parts_of(tiles, 2);
}

ProductPlan plan_gated(const ForwardArguments& call, Road road) {
  return plan_product(true, call.M, call.HR, call.DK, road);
}
ProductPlan plan_down(const ForwardArguments& call, Road road) {
  return plan_product(false, call.M, call.DR, call.HK, road);
}
ExpandedPlan plan_of_expanded(const ForwardArguments& call, bool has_wide) {
  return quantized_mlp::plan_expanded(call.M, call.D, call.HR * kTileRows, has_wide);
}

// Whether rows of x, y and the residual begin at multiples of 16 bytes.
bool has_whole_rows(const ForwardArguments& call) {
  return call.D % 8 == 0 && is_aligned(call.x.data, 16) && is_aligned(call.y.data, 16) &&
         is_aligned(data_or_null(call.residual), 16);
}

// `has_wide`: the GPU has the kernels for SM 9.0; `whole_rows`: as has_whole_rows says. Those
// of `wide` multiply whole numbers by scales of x's dtype, codes of e4m3 by fp32.
Road road_of(const ForwardArguments& call, bool has_wide, bool whole_rows) {
  const bool is_e4m3 = call.gate_scales.dtype == sdk::DType::kFloat32;
  Road many = Road::kTiled;
  if (has_wide && rounds_activations(call)) {
    if (is_for_wide8(call.DG, call.DK) && is_for_wide8(call.HG, call.HK)) many = Road::kWide8;
  } else if (has_wide && (is_e4m3 || call.gate_scales.dtype == call.x.dtype)) {
    many = Road::kWide;
  }
  const bool invariant = call.batch_invariant == ForwardArguments::BatchInvariant::kYes;
  const int64_t hidden = call.HR * kTileRows;
  const int64_t few = quantized_mlp::most_decoded(many, hidden * call.D);
  if (invariant || call.M <= few) return Road::kDecode;
  // Activations in FP8 are multiplied by weights that are not rounded.
  if (!whole_rows || rounds_activations(call) ||
      !quantized_mlp::can_expand(call.M, call.D, hidden)) {
    return many;
  }
  const Codes codes = is_e4m3 ? Codes::kE4m3 : call.T == 512 ? Codes::kInt4 : Codes::kInt8;
  return call.M < quantized_mlp::fewest_expanded(many, codes) ? many : Road::kExpanded;
}

// Blocks of tokens that the wide kernels read and write.
int64_t wide_blocks(const ForwardArguments& call) {
  const int64_t blocks = parts_of(call.M, quantized_mlp::kWideBlock);
  return blocks > 1 ? blocks + blocks % 2 : blocks;
}

// Where the workspace's parts begin.
struct Workspace {
  size_t x;  // 0
  size_t h;
  size_t sums;
  size_t chunk;  // bytes
  size_t x_scales;
  size_t h_scales;
  size_t normed;
  size_t end;
};

Workspace workspace_of(const ForwardArguments& call, Road road, bool has_wide) {
  Workspace at = {};
  const auto bytes_of = [&](int64_t columns) {
    return (static_cast<size_t>(call.M * columns) * 2 + 255) / 256 * 256;
  };
  const auto blocks = static_cast<size_t>(wide_blocks(call));
  const auto x_blocks = blocks * static_cast<size_t>(parts_of(call.DK, 2));
  const auto h_blocks = blocks * static_cast<size_t>(parts_of(call.HK, 2));
  if (road == Road::kWide8) {
    at.h = x_blocks * quantized_mlp::kWide8BlockBytes;
    at.sums = at.h + h_blocks * quantized_mlp::kWide8BlockBytes;
  } else if (road == Road::kWide) {
    at.h = blocks * quantized_mlp::kWideBlockBytes * static_cast<size_t>(call.DK);
    at.sums = at.h + blocks * quantized_mlp::kWideBlockBytes * static_cast<size_t>(call.HK);
  } else {
    at.h = rounds_activations(call) ? bytes_of(call.D) : 0;
    at.sums = at.h + bytes_of(call.HR * kTileRows);
  }
  // One product's sums after the other's; or the weights of a chunk, and of the next one.
  int64_t of_gated = 0;
  int64_t of_down = 0;
  if (road == Road::kExpanded) {
    const ExpandedPlan plan = plan_of_expanded(call, has_wide);
    at.chunk = (static_cast<size_t>(std::max(plan.h.bytes, plan.y.bytes)) + 255) / 256 * 256;
    of_gated = static_cast<int64_t>((has_wide ? 2 : 1) * at.chunk);
  } else {
    of_gated = bytes_of_sums(plan_gated(call, road), call.M, call.HR * kTileRows);
    of_down = bytes_of_sums(plan_down(call, road), call.M, call.D);
  }
  at.x_scales = (at.sums + static_cast<size_t>(std::max(of_gated, of_down)) + 15) / 16 * 16;
  at.h_scales = at.x_scales;
  if (road == Road::kWide8) {
    at.h_scales += x_blocks * quantized_mlp::kWideBlock * sizeof(float);
  }
  at.end = at.h_scales;
  if (road == Road::kWide8) at.end += h_blocks * quantized_mlp::kWideBlock * sizeof(float);
  if (call.norm_weight.present) {
    at.normed = (at.end + 255) / 256 * 256;
    at.end = at.normed + bytes_of(call.D);
  }
  return at;
}

int32_t check_alignment(const char* op, const char* name, const Matrix& matrix, kiln_error* error) {
  const auto two_scales = static_cast<uintptr_t>(2 * scale_bytes(matrix.kind));
  if (is_aligned(matrix.codes, 16) && is_aligned(matrix.scales, two_scales) &&
      is_aligned(matrix.zeros, 4)) {
    return KILN_OK;
  }
  return sdk::fail(error, KILN_INVALID_ARGUMENT,
                   "%s: %s, its scales or its zeros begin at an odd address; expected multiples of "
                   "16, %d and 4 bytes",
                   op, name, static_cast<int>(two_scales));
}

void set_matrix(ProductArguments* arguments, const Matrix& first, const Matrix& second) {
  arguments->b[0] = {first.codes, first.scales, first.zeros};
  arguments->b[1] = {second.codes, second.scales, second.zeros};
  arguments->row_tiles = static_cast<int>(first.row_tiles);
  arguments->depth_tiles = static_cast<int>(first.depth_tiles);
  arguments->groups = static_cast<int>(first.groups);
  arguments->shift = std::min(first.shift, 31);  // k is an int
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
  const bool wide = is_wide(plan.road);
  if (is_deep || (plan.road == Road::kTiled && plan.row_blocks > kMostBlocks) ||
      (wide && plan.token_blocks * plan.row_blocks > INT32_MAX - quantized_mlp::kCtas)) {
    return sdk::fail(
        error, KILN_UNSUPPORTED,
        "%s: %lld x %lld outputs of %lld columns need more CTAs than a grid has, or count "
        "columns beyond 2^30; split x into several calls",
        op, product.arguments.m, product.arguments.n, product.arguments.k);
  }
  product.arguments.splits = plan.splits;
  product.arguments.whole = static_cast<int>(plan.whole);
  product.arguments.token_blocks = static_cast<int>(plan.token_blocks);
  const auto tokens = static_cast<uint32_t>(plan.token_blocks);
  const auto rows =
      plan.road == Road::kDecode ? share_out(gpu, plan) : static_cast<uint32_t>(plan.row_blocks);
  constexpr int64_t kPair = int64_t{quantized_mlp::kDecodeTiles} * quantized_mlp::kTileDepth;
  const bool is_whole = product.arguments.aligned != 0 && product.arguments.k % kPair == 0 &&
                        (int64_t{1} << product.arguments.shift) >= kPair;
  product.arguments.whole_pairs = is_whole ? 1 : 0;
  const auto splits = static_cast<uint32_t>(plan.splits);
  const auto split = wide ? static_cast<uint32_t>(split_tiles(plan)) : 0;
  product.arguments.split_tiles = static_cast<int>(split);
  product.arguments.tile_tokens = plan.tokens;
  const sdk::Grid grid = wide ? sdk::Grid{tokens * rows - split + split * splits, 1, 1}
                              : sdk::Grid{tokens, rows, splits};
  const uint32_t threads = wide ? quantized_mlp::kWideThreads : kThreads;
  const bool overlap = gpu.has(quantized_mlp::kKernelsWait);
  NormedArguments normed{product.arguments, product.norm};
  void* pointers[] = {product.normed ? static_cast<void*>(&normed) : &product.arguments};
  const int kernel = product.normed ? normed_kernel_of(product.float16, product.codes)
                                    : kernel_of(plan, product.float16, product.codes,
                                                product.arguments.groups > 1);
  const int32_t status = gpu.launch(kernel, {.grid = grid, .threads = threads, .overlap = overlap},
                                    stream, pointers, error);
  if (status != KILN_OK || plan.splits == 1) return status;
  // One or two warps a token of a split tile, or a thread a pair of outputs.
  const int64_t sums = wide
                           ? int64_t{split} * product.arguments.tile_tokens * (plan.gated ? 32 : 64)
                           : product.arguments.m * ((product.arguments.n + 1) / 2);
  return gpu.launch(sums_kernel_of(plan, product.float16),
                    {.grid = {static_cast<uint32_t>(parts_of(sums, kThreads))},
                     .threads = kThreads,
                     .overlap = overlap},
                    stream, pointers, error);
}

// `x`: normed, where nothing norms it later.
Product gated_of(const ForwardArguments& call, const Mlp& mlp, const Workspace& at, const void* x) {
  Product one{is_float16(call), mlp.gate.kind, {}};
  ProductArguments& arguments = one.arguments;
  set_matrix(&arguments, mlp.gate, mlp.up);
  arguments.a = x;
  arguments.bias0 = data_or_null(call.gate_bias);
  arguments.bias1 = data_or_null(call.up_bias);
  arguments.out = static_cast<char*>(call.workspace) + at.h;
  arguments.parts = reinterpret_cast<float*>(static_cast<char*>(call.workspace) + at.sums);
  arguments.out_tiles = static_cast<int>(call.HK);
  arguments.token_scales =
      reinterpret_cast<const float*>(static_cast<char*>(call.workspace) + at.x_scales);
  arguments.out_scales = reinterpret_cast<float*>(static_cast<char*>(call.workspace) + at.h_scales);
  arguments.m = call.M;
  arguments.n = mlp.hidden;
  arguments.k = call.D;
  arguments.bfloat16_scales = call.gate_scales.dtype == sdk::DType::kBFloat16 ? 1 : 0;
  arguments.aligned = call.D % 8 == 0 && is_aligned(x, 16) ? 1 : 0;
  arguments.paired = 1;
  arguments.gating = mlp.gating;
  return one;
}

Product down_of(const ForwardArguments& call, const Mlp& mlp, const Workspace& at) {
  Product one{is_float16(call), mlp.down.kind, {}};
  ProductArguments& arguments = one.arguments;
  set_matrix(&arguments, mlp.down, mlp.down);
  arguments.a = static_cast<char*>(call.workspace) + at.h;
  arguments.token_scales =
      reinterpret_cast<const float*>(static_cast<char*>(call.workspace) + at.h_scales);
  arguments.bias0 = data_or_null(call.down_bias);
  arguments.residual = data_or_null(call.residual);
  arguments.out = call.y.data;
  arguments.parts = reinterpret_cast<float*>(static_cast<char*>(call.workspace) + at.sums);
  arguments.m = call.M;
  arguments.n = call.D;
  arguments.k = mlp.hidden;
  arguments.bfloat16_scales = call.down_scales.dtype == sdk::DType::kBFloat16 ? 1 : 0;
  arguments.aligned = 1;
  arguments.paired = call.D % 2 == 0 && is_aligned(call.y.data, 4) ? 1 : 0;
  return one;
}

// `threads` threads, which read activations and write them in another form.
int32_t launch_activations(const sdk::OnDevice& gpu, int kernel, int64_t threads,
                           ArrangeArguments arguments, void* stream, kiln_error* error) {
  const int64_t blocks = parts_of(threads, kThreads);
  if (blocks == 0) return KILN_OK;
  if (blocks > INT32_MAX) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "forward: [%lld, %lld] activations need more CTAs than a grid has; split x "
                     "into several calls",
                     arguments.m, arguments.k);
  }
  void* pointers[] = {&arguments};
  return gpu.launch(kernel,
                    {.grid = {static_cast<uint32_t>(blocks)},
                     .threads = kThreads,
                     .overlap = gpu.has(quantized_mlp::kKernelsWait)},
                    stream, pointers, error);
}

// x as the wide kernels read it, at the beginning of the workspace.
int32_t arrange(const sdk::OnDevice& gpu, const ForwardArguments& call, Road road,
                const Workspace& at, const void* x, kiln_error* error) {
  ArrangeArguments arguments{
      x,
      call.workspace,
      call.M,
      call.D,
      wide_blocks(call),
      call.DK,
      call.D % 2 == 0 && is_aligned(x, 4) ? 1 : 0,
      reinterpret_cast<float*>(static_cast<char*>(call.workspace) + at.x_scales)};
  const int64_t blocks_of_k =
      road == Road::kWide8 ? parts_of(arguments.depth_tiles, 2) : arguments.depth_tiles;
  const int kernel = road == Road::kWide8 ? quantized_mlp::kArrange8 + (is_float16(call) ? 1 : 0)
                                          : quantized_mlp::kArrange;
  return launch_activations(gpu, kernel,
                            arguments.blocks * blocks_of_k * quantized_mlp::kWideBlock * 8,
                            arguments, call.stream, error);
}

// [M, columns] in x's dtype, rounded to numbers of e4m3.
int32_t round8(const sdk::OnDevice& gpu, const ForwardArguments& call, const void* from, void* to,
               int64_t columns, kiln_error* error) {
  ArrangeArguments arguments{from, to, call.M, columns, 0, 0, 0, nullptr};
  return launch_activations(gpu, quantized_mlp::kRound8 + (is_float16(call) ? 1 : 0),
                            call.M * parts_of(columns, quantized_mlp::kFloat8Block) * 32, arguments,
                            call.stream, error);
}

NormArguments norm_of(const ForwardArguments& call) {
  const void* const weight = call.norm_weight.data;
  return {weight, static_cast<float>(call.eps), static_cast<float>(call.offset),
          call.D % 8 == 0 && is_aligned(weight, 16) ? 1 : 0};
}

// Whether the gated product's kernel norms x. If not, norm_rows does, to the same bits.
bool norms_in_kernel(const sdk::OnDevice& gpu, const ForwardArguments& call, Road road,
                     Codes codes) {
  return quantized_mlp::norms_in_decode(road, rounds_activations(call), codes, call.M, call.D) &&
         gpu.has(normed_kernel_of(is_float16(call), codes));
}

// [M, D], normed, in the workspace.
int32_t norm_rows(const sdk::OnDevice& gpu, const ForwardArguments& call, void* to,
                  kiln_error* error) {
  quantized_mlp::NormRowsArguments arguments{call.x.data, to, call.D, 0, norm_of(call)};
  arguments.aligned = arguments.norm.aligned != 0 && is_aligned(call.x.data, 16) ? 1 : 0;
  if (call.M > INT32_MAX) {
    return sdk::fail(error, KILN_UNSUPPORTED,
                     "forward: %lld rows to norm need more CTAs than a grid has; split x into "
                     "several calls",
                     static_cast<long long>(call.M));
  }
  void* pointers[] = {&arguments};
  return gpu.launch(quantized_mlp::kNormRows + (is_float16(call) ? 1 : 0),
                    {.grid = {static_cast<uint32_t>(call.M)},
                     .threads = kThreads,
                     .overlap = gpu.has(quantized_mlp::kKernelsWait)},
                    call.stream, pointers, error);
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
  size_t most = 0;
  for (const bool has_wide : {false, true}) {
    for (const bool whole_rows : {false, true}) {
      const Road road = road_of(call, has_wide, whole_rows);
      most = std::max(most, workspace_of(call, road, has_wide).end);
    }
  }
  return most;
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
  const bool has_wide = gpu.has(quantized_mlp::kArrange);
  const Road road = road_of(call, has_wide, has_whole_rows(call));
  const Workspace at = workspace_of(call, road, has_wide);
  char* const workspace = static_cast<char*>(call.workspace);
  const bool rounds = rounds_activations(call) && road != Road::kWide8;
  const bool norms = call.norm_weight.present;
  const bool in_kernel = norms && norms_in_kernel(gpu, call, road, mlp.gate.kind);
  const void* x = call.x.data;
  if (norms && !in_kernel) {
    x = workspace + at.normed;
    status = norm_rows(gpu, call, workspace + at.normed, error);
    if (status != KILN_OK) return status;
  }
  Product gated = gated_of(call, mlp, at, x);
  gated.normed = in_kernel;
  if (in_kernel) gated.norm = norm_of(call);
  if (is_wide(road)) {
    status = arrange(gpu, call, road, at, x, error);
  } else if (rounds) {
    status = round8(gpu, call, x, workspace, call.D, error);
    gated.arguments.aligned = call.D % 8 == 0 ? 1 : 0;
  }
  if (is_wide(road) || rounds) gated.arguments.a = workspace;
  if (status == KILN_OK && road == Road::kExpanded) {
    const Product products[] = {gated, down_of(call, mlp, at)};
    return launch_expanded(gpu, products, plan_of_expanded(call, has_wide), at.chunk, call.stream,
                           error);
  }
  if (status == KILN_OK) {
    status = launch(gpu, "forward", gated, plan_gated(call, road), call.stream, error);
  }
  if (status == KILN_OK && rounds) {
    status = round8(gpu, call, workspace + at.h, workspace + at.h, mlp.hidden, error);
  }
  if (status != KILN_OK) return status;
  return launch(gpu, "forward", down_of(call, mlp, at), plan_down(call, road), call.stream, error);
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
  arguments.packed_scales = call.packed_scales.data;
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
  arguments.kind = matrix.kind;
  arguments.shift = matrix.shift;
  arguments.scale_dtype = quantized_mlp::real_of(call.packed_scales.dtype);
  arguments.weight_dtype = quantized_mlp::real_of(call.weight.dtype);
  arguments.rows = call.N;
  arguments.columns = call.K;
  arguments.depth_tiles = matrix.depth_tiles;
  arguments.groups = matrix.groups;
  arguments.codes = static_cast<unsigned char*>(call.codes.data);
  arguments.scales = call.scales.present ? call.scales.data : nullptr;
  arguments.zeros = call.zeros.present ? static_cast<unsigned char*>(call.zeros.data) : nullptr;
  arguments.weight = call.weight.present ? call.weight.data : nullptr;
  status = launch_pack(gpu, quantized_mlp::kUnpackCodes, call.N * call.K, &arguments, call, error);
  if (status != KILN_OK) return status;
  return launch_pack(gpu, quantized_mlp::kUnpackGroups, call.N * matrix.groups, &arguments, call,
                     error);
}

}  // namespace kiln::package
