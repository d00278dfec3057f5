// SPDX-License-Identifier: Apache-2.0
//
// Shapes: what the extents of a call's tensors say beyond the schema: codes, groups, and whether a
// packed matrix has the rows and columns that the call needs. For the CPU and the GPU variants.
// Failures are KILN_INVALID_ARGUMENT. Pure functions.
#pragma once

#include <kiln/sdk/types.hpp>

#include "gate.h"
#include "layout.h"
#include "package.gen.hpp"
#include "sources.h"

namespace quantized_mlp {

namespace sdk = kiln::sdk;

// A packed matrix.
struct Matrix {
  const unsigned char* codes;
  const unsigned char* scales;
  const unsigned char* zeros;  // or null: middle_of(kind)
  Codes kind;
  int shift;  // column k is in group k >> shift
  int64_t row_tiles;
  int64_t depth_tiles;
  int64_t groups;
};

inline Real real_of(sdk::DType dtype) {
  return dtype == sdk::DType::kFloat32   ? Real::kFloat32
         : dtype == sdk::DType::kFloat16 ? Real::kFloat16
                                         : Real::kBfloat16;
}

// The tensors of one.
struct Named {
  const char* op;
  const char* name;  // of the codes
  const sdk::Tensor& codes;
  const sdk::Tensor& scales;
  const sdk::Tensor& zeros;
};

// The shift of `groups` groups over `columns` columns; -1 where no size of a group gives so many.
inline int shift_of(int64_t columns, int64_t groups) {
  if (groups == 1) return kWholeRow;
  for (int shift = 5; shift <= 7; ++shift) {
    if (parts_of(columns, int64_t{1} << shift) == groups) return shift;
  }
  return columns == 0 && groups == 0 ? kWholeRow : -1;
}

inline int32_t check_groups(const char* op, const char* name, int64_t groups, int64_t columns,
                            int* shift, kiln_error* error) {
  *shift = shift_of(columns, groups);
  if (*shift >= 0) return KILN_OK;
  return sdk::fail(
      error, KILN_INVALID_ARGUMENT,
      "%s: %s has %lld groups of %lld columns; expected %lld, %lld, %lld or 1: groups of "
      "32, 64 or 128, or one of a whole row",
      op, name, static_cast<long long>(groups), static_cast<long long>(columns),
      static_cast<long long>(parts_of(columns, 32)), static_cast<long long>(parts_of(columns, 64)),
      static_cast<long long>(parts_of(columns, 128)));
}

// Of packed codes: float8_e4m3fn, else bytes, whose tiles say how many bits they have.
inline int32_t check_codes(const char* op, const char* name, const sdk::Tensor& codes, Codes* kind,
                           kiln_error* error) {
  const int64_t bytes = codes.shape[2];
  const bool is_e4m3 = codes.dtype == sdk::DType::kFloat8E4M3FN;
  *kind = is_e4m3 ? Codes::kE4m3 : bytes == tile_bytes(Codes::kInt4) ? Codes::kInt4 : Codes::kInt8;
  if (bytes == tile_bytes(*kind)) return KILN_OK;
  return sdk::fail(error, KILN_INVALID_ARGUMENT, "%s: %s has tiles of %lld bytes; expected %s", op,
                   name, static_cast<long long>(bytes),
                   is_e4m3 ? "1024 of float8_e4m3fn" : "512 of 4 bits, 1024 of 8");
}

// Scales of float8_e4m3fn are float32, all others are not.
inline int32_t check_scales(const Named& from, Codes kind, kiln_error* error) {
  const bool is_e4m3 = kind == Codes::kE4m3;
  if (is_e4m3 && from.zeros.present) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "%s: %s is float8_e4m3fn and has zeros, which only whole numbers have; leave "
                     "them out",
                     from.op, from.name);
  }
  if (is_e4m3 == (from.scales.dtype == sdk::DType::kFloat32)) return KILN_OK;
  return sdk::fail(error, KILN_INVALID_ARGUMENT, "%s: %s is %s, and its scales are %s; expected %s",
                   from.op, from.name, is_e4m3 ? "float8_e4m3fn" : "uint8",
                   is_e4m3 ? "of 16 bits" : "float32", is_e4m3 ? "float32" : "bfloat16 or float16");
}

inline int32_t check_tiles(const char* op, const char* name, const sdk::Tensor& codes, int64_t rows,
                           int64_t columns, kiln_error* error) {
  const int64_t row_tiles = parts_of(rows, kTileRows);
  const int64_t depth_tiles = parts_of(columns, kTileDepth);
  if (codes.shape[0] == row_tiles && codes.shape[1] == depth_tiles) return KILN_OK;
  return sdk::fail(
      error, KILN_INVALID_ARGUMENT,
      "%s: %s has %lld x %lld tiles; expected %lld x %lld, of 16 x 64 for a weight of %lld x %lld",
      op, name, static_cast<long long>(codes.shape[0]), static_cast<long long>(codes.shape[1]),
      static_cast<long long>(row_tiles), static_cast<long long>(depth_tiles),
      static_cast<long long>(rows), static_cast<long long>(columns));
}

// `rows` and `columns`: those that the matrix must have.
inline int32_t check_matrix(const Named& from, int64_t rows, int64_t columns, Matrix* matrix,
                            kiln_error* error) {
  const int64_t groups = from.scales.shape[1];
  *matrix = {static_cast<const unsigned char*>(from.codes.data),
             static_cast<const unsigned char*>(from.scales.data),
             from.zeros.present ? static_cast<const unsigned char*>(from.zeros.data) : nullptr,
             Codes::kInt4,
             0,
             from.codes.shape[0],
             from.codes.shape[1],
             groups};
  int32_t status = check_codes(from.op, from.name, from.codes, &matrix->kind, error);
  if (status == KILN_OK) status = check_scales(from, matrix->kind, error);
  if (status == KILN_OK) status = check_tiles(from.op, from.name, from.codes, rows, columns, error);
  if (status != KILN_OK) return status;
  return check_groups(from.op, from.name, groups, columns, &matrix->shift, error);
}

// A call of forward. `hidden`: the extent between the two products, a multiple of 16; what exceeds
// H is 0 there, or has weights of 0.
struct Mlp {
  Matrix gate;
  Matrix up;
  Matrix down;
  int64_t hidden;
  gated_mlp::Gating gating;
};

inline gated_mlp::Gating gating_of(const kiln::package::ForwardArguments& call) {
  using gated_mlp::Gate;
  using Arguments = kiln::package::ForwardArguments;
  using Activation = Arguments::Activation;
  const bool saturates = call.overflow == Arguments::Overflow::kSaturate;
  const auto limit = static_cast<float>(call.limit);
  const unsigned greatest = saturates ? gated_mlp::kLargestFloat16s : gated_mlp::kInfiniteFloat16s;
  const auto of = [&](Gate gate) { return gated_mlp::Gating{gate, limit, greatest}; };
  switch (call.activation) {
    case Activation::kSilu:
      return of(Gate::kSilu);
    case Activation::kGelu:
      return of(Gate::kGelu);
    case Activation::kGeluTanh:
      return of(Gate::kGeluTanh);
    case Activation::kRelu:
      return of(Gate::kRelu);
    case Activation::kSigmoid:
      return of(Gate::kSigmoid);
    case Activation::kSiluClamped:
      return of(Gate::kSiluClamped);
  }
  return of(Gate::kSilu);
}

constexpr double kMostFloat32 = 0x1.fffffep127;

inline int32_t check_mlp(const kiln::package::ForwardArguments& call, Mlp* mlp, kiln_error* error) {
  const char* const op = "forward";
  if (!(call.limit > 0)) {  // a NaN is not
    return sdk::fail(error, KILN_INVALID_ARGUMENT, "%s: limit is %g; expected a number above 0", op,
                     call.limit);
  }
  if (!(call.eps >= 0 && call.eps <= kMostFloat32)) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "%s: eps is %g; expected a number of at least 0 that a float32 holds", op,
                     call.eps);
  }
  if (!(call.offset >= -kMostFloat32 && call.offset <= kMostFloat32)) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "%s: offset is %g; expected a number that a float32 holds", op, call.offset);
  }
  mlp->gating = gating_of(call);
  mlp->hidden = call.gate.shape[0] * kTileRows;
  int32_t status = check_matrix({op, "gate", call.gate, call.gate_scales, call.gate_zeros},
                                mlp->hidden, call.D, &mlp->gate, error);
  if (status != KILN_OK) return status;
  if (call.input_dtype == kiln::package::ForwardArguments::InputDtype::kFloat8E4m3fn &&
      mlp->gate.kind != Codes::kE4m3) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "%s: input_dtype is float8_e4m3fn, and gate is uint8; expected float8_e4m3fn "
                     "weights, or input_dtype x",
                     op);
  }
  status = check_matrix({op, "up", call.up, call.up_scales, call.up_zeros}, mlp->hidden, call.D,
                        &mlp->up, error);
  if (status != KILN_OK) return status;
  return check_matrix({op, "down", call.down, call.down_scales, call.down_zeros}, call.D,
                      mlp->hidden, &mlp->down, error);
}

// What pack reads, [rows, columns] as its layout says, and whether the outputs have room for it.
int32_t check_pack(const kiln::package::PackArguments& call, Source* source, kiln_error* error);
int32_t check_pack_zeros(const kiln::package::PackZerosArguments& call, Source* source,
                         kiln_error* error);

// The matrix that unpack reads.
int32_t check_unpack(const kiln::package::UnpackArguments& call, Matrix* matrix, kiln_error* error);

}  // namespace quantized_mlp
