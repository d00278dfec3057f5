// SPDX-License-Identifier: Apache-2.0
//
// Expanded: arguments of the kernels for so many tokens that the weights are made numbers of 16
// bits once, in the workspace, chunk after chunk, which a plain product then multiplies. Included
// by both sides.
#pragma once

#include "arguments.h"
#include "portable/arguments.h"
#include "sm90/sm90_arguments.h"

namespace quantized_mlp {

// A chunk, which begins at row tile `first` of each matrix: to[16 row_tiles, k], compact, of scale
// * (code - zero), rounded once.
struct ExpandArguments {
  MatrixArguments b[2];
  void* to[2];
  long long k;
  int row_tiles;  // of one matrix
  int matrices;   // 0: there is no chunk
  Codes codes;
  int first;
  int depth_tiles;
  int groups;
  int shift;
  int bfloat16_scales;
};
constexpr unsigned kExpandThreads = 256;

// A warp's turn has 32 bytes of codes a lane.
KILN_INDEX int expanded_unit(Codes codes) {
  return codes == Codes::kInt4 ? 2 : 1;  // tiles of k
}
KILN_INDEX long long expand_units(Codes codes, const ExpandArguments& p) {
  return p.matrices * p.row_tiles * parts_of(p.depth_tiles, expanded_unit(codes));
}

// A product of the chunk that begins at column `first` of the output: gated two matrices, else one.
using ExpandedTile = gated_mlp::TallTile;
struct ExpandedArguments : gated_mlp::GemmArguments {
  long long first;  // b0 and b1 are where row 0 would be
};
using Sm90ExpandedTile = gated_mlp::Cooperative<256>;
struct Sm90ExpandedArguments : gated_mlp::Sm90Arguments {
  int first;  // the maps of b are those of the chunk
  ExpandArguments next;
};

}  // namespace quantized_mlp
