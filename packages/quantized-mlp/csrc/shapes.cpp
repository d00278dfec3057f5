// SPDX-License-Identifier: Apache-2.0
//
#include "shapes.hpp"

namespace quantized_mlp {
namespace {

using kiln::package::PackArguments;
using kiln::package::PackZerosArguments;
using kiln::package::UnpackArguments;

SourceLayout layout_of(const PackArguments& call) {
  switch (call.layout) {
    case PackArguments::Layout::kPlain:
      return SourceLayout::kPlain;
    case PackArguments::Layout::kGptq:
      return SourceLayout::kGptq;
    case PackArguments::Layout::kAwq:
      return SourceLayout::kAwq;
    case PackArguments::Layout::kCompressedTensors:
      return SourceLayout::kCompressedTensors;
  }
  return SourceLayout::kPlain;
}

SourceLayout layout_of(const PackZerosArguments& call) {
  switch (call.layout) {
    case PackZerosArguments::Layout::kPlain:
      return SourceLayout::kPlain;
    case PackZerosArguments::Layout::kGptq:
      return SourceLayout::kGptq;
    case PackZerosArguments::Layout::kGptqV2:
      return SourceLayout::kGptqV2;
    case PackZerosArguments::Layout::kAwq:
      return SourceLayout::kAwq;
    case PackZerosArguments::Layout::kCompressedTensors:
      return SourceLayout::kCompressedTensors;
  }
  return SourceLayout::kPlain;
}

// Plain ones are bytes, all others words.
int32_t check_dtype(const char* op, const char* name, const sdk::Tensor& tensor,
                    SourceLayout layout, kiln_error* error) {
  const bool is_plain = layout == SourceLayout::kPlain;
  if (is_plain != (tensor.dtype == sdk::DType::kInt32)) return KILN_OK;
  return sdk::fail(error, KILN_INVALID_ARGUMENT, "%s: %s are %s; expected %s in this layout", op,
                   name, is_plain ? "int32" : "bytes", is_plain ? "a byte each" : "words, int32");
}

int32_t check_awq_bits(const char* op, const Source& source, kiln_error* error) {
  if (source.layout != SourceLayout::kAwq || source.kind == Codes::kInt4) return KILN_OK;
  return sdk::fail(error, KILN_INVALID_ARGUMENT,
                   "%s: the layout is awq and there are %d bits; AWQ has 4", op,
                   bits_of(source.kind));
}

bool is_by_row(SourceLayout layout) {
  return layout == SourceLayout::kPlain || layout == SourceLayout::kCompressedTensors;
}

// Where codes are words, rows and columns are those that the words have room for; of AWQ's, whose
// words go along the rows, the scales say more.
void find_extents(const PackArguments& call, Source* source) {
  const int64_t in_word = 32 / bits_of(source->kind);
  const int64_t a = call.codes.shape[0];
  const int64_t b = call.codes.shape[1];
  switch (source->layout) {
    case SourceLayout::kPlain:
      source->rows = a;
      source->columns = b;
      return;
    case SourceLayout::kGptq:
    case SourceLayout::kGptqV2:
      source->rows = b;
      source->columns = a * in_word;
      return;
    case SourceLayout::kAwq:
      source->rows = parts_of(call.SB, in_word) == b ? call.SB : b * in_word;
      source->columns = a;
      return;
    case SourceLayout::kCompressedTensors:
      source->rows = a;
      source->columns = b * in_word;
      return;
  }
}

// Rows of codes of e4m3 that one row of scales is for: 1, 128 or all.
int row_shift_of(const Source& source, int64_t scale_rows) {
  if (source.kind != Codes::kE4m3 || scale_rows == source.rows) return 0;
  return scale_rows == 1 ? kWholeRow : 7;
}

// A packed form of e4m3 is of codes of e4m3 as they lie, and of scales that are made float32.
int32_t check_kinds(const PackArguments& call, const Source& source, kiln_error* error) {
  const bool is_e4m3 = source.kind == Codes::kE4m3;
  if (is_e4m3 != (call.codes.dtype == sdk::DType::kFloat8E4M3FN) ||
      (is_e4m3 && source.layout != SourceLayout::kPlain)) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "pack: of codes and packed one is float8_e4m3fn, or the layout is not plain; "
                     "expected both, in the layout plain");
  }
  const bool fits = is_e4m3 ? call.packed_scales.dtype == sdk::DType::kFloat32
                            : call.packed_scales.dtype == call.scales.dtype &&
                                  call.scales.dtype != sdk::DType::kFloat32;
  if (fits) return KILN_OK;
  return sdk::fail(error, KILN_INVALID_ARGUMENT,
                   "pack: packed_scales have another dtype; expected %s",
                   is_e4m3 ? "float32, for float8_e4m3fn" : "that of scales, bfloat16 or float16");
}

}  // namespace

int32_t check_pack(const PackArguments& call, Source* source, kiln_error* error) {
  const char* const op = "pack";
  *source = {};
  source->codes = call.codes.data;
  source->scales = call.scales.data;
  source->scale_dtype = real_of(call.scales.dtype);
  source->layout = layout_of(call);
  source->is_signed = call.codes.dtype == sdk::DType::kInt8 ? 1 : 0;
  source->groups = call.G;
  int32_t status = check_codes(op, "packed", call.packed, &source->kind, error);
  if (status == KILN_OK) status = check_kinds(call, *source, error);
  if (status == KILN_OK) status = check_dtype(op, "codes", call.codes, source->layout, error);
  if (status == KILN_OK) status = check_awq_bits(op, *source, error);
  if (status != KILN_OK) return status;
  find_extents(call, source);
  source->row_shift = row_shift_of(*source, call.SA);
  const bool by_row = is_by_row(source->layout);
  const int64_t lines = source->rows == 0 ? 0 : ((source->rows - 1) >> source->row_shift) + 1;
  const int64_t first = by_row ? lines : source->groups;
  const int64_t second = by_row ? source->groups : source->rows;
  if (call.SA != first || call.SB != second) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "%s: scales are [%lld, %lld]; expected [%lld, %lld], for %lld rows and the "
                     "%lld groups of packed_scales",
                     op, static_cast<long long>(call.SA), static_cast<long long>(call.SB),
                     static_cast<long long>(first), static_cast<long long>(second), source->rows,
                     source->groups);
  }
  status = check_tiles(op, "packed", call.packed, source->rows, source->columns, error);
  if (status != KILN_OK) return status;
  return check_groups(op, "packed_scales", source->groups, source->columns, &source->shift, error);
}

int32_t check_pack_zeros(const PackZerosArguments& call, Source* source, kiln_error* error) {
  const char* const op = "pack_zeros";
  *source = {};
  source->zeros = call.zeros.data;
  source->layout = layout_of(call);
  source->kind = call.bits == 4 ? Codes::kInt4 : Codes::kInt8;
  source->groups = call.G;
  if (call.bits != 4 && call.bits != 8) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT, "%s: bits is %lld; expected 4 or 8", op,
                     static_cast<long long>(call.bits));
  }
  int32_t status = check_dtype(op, "zeros", call.zeros, source->layout, error);
  if (status == KILN_OK) status = check_awq_bits(op, *source, error);
  if (status != KILN_OK) return status;
  const bool by_row = is_by_row(source->layout);
  const int64_t in_word = source->layout == SourceLayout::kPlain ? 1 : 32 / bits_of(source->kind);
  source->rows = (by_row ? call.ZA : call.ZB) * in_word;
  const int64_t groups = by_row ? call.ZB : call.ZA;
  if (groups == call.G && parts_of(source->rows, kTileRows) == call.NR) return KILN_OK;
  return sdk::fail(error, KILN_INVALID_ARGUMENT,
                   "%s: zeros are of %lld rows and %lld groups; packed_zeros has %lld tiles of 16 "
                   "rows and %lld groups",
                   op, source->rows, static_cast<long long>(groups),
                   static_cast<long long>(call.NR), static_cast<long long>(call.G));
}

int32_t check_unpack(const UnpackArguments& call, Matrix* matrix, kiln_error* error) {
  if (call.zeros.present && !call.packed_zeros.present) {
    return sdk::fail(error, KILN_INVALID_ARGUMENT,
                     "unpack: zeros are asked for, and there are no packed_zeros; leave them out");
  }
  return check_matrix({"unpack", "packed", call.packed, call.packed_scales, call.packed_zeros},
                      call.N, call.K, matrix, error);
}

}  // namespace quantized_mlp
