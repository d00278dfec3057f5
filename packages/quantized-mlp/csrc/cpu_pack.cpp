// SPDX-License-Identifier: Apache-2.0
//
// pack and unpack on the CPU: a row of tiles a thread.
#include <limits>

#include "../../rows/element.hpp"
#include "../../rows/parallel.hpp"
#include "package.gen.hpp"
#include "shapes.hpp"

namespace kiln::package {
namespace {

using namespace quantized_mlp;

float scale_of(const sdk::Tensor& scales, int64_t at) {
  float value = 0;
  rows::with_element(scales.dtype, [&]<class T>(T*) {
    value = rows::load(static_cast<const T*>(scales.data)[at]);
  });
  return value;
}

void store_scale(const PackArguments& call, const Source& source, int64_t row, int64_t group,
                 int64_t to) {
  const bool is_there = row < source.rows;
  const int64_t from = is_there ? source_scale(source, row, group) : 0;
  if (source.kind == Codes::kE4m3) {
    const bool is_nan = is_there && has_nan(source, row, group);
    static_cast<float*>(call.packed_scales.data)[to] =
        is_nan ? std::numeric_limits<float>::quiet_NaN()
               : (is_there ? scale_of(call.scales, from) : 0.0f);
    return;
  }
  static_cast<uint16_t*>(call.packed_scales.data)[to] =
      is_there ? static_cast<const uint16_t*>(call.scales.data)[from] : uint16_t{0};
}

void pack_row_tile(const PackArguments& call, const Source& source, int64_t tile) {
  auto* const codes = static_cast<uint32_t*>(call.packed.data) + tile * call.KT * call.T / 4;
  for (int64_t k_tile = 0; k_tile < call.KT; ++k_tile) {
    for (int at = 0; at < static_cast<int>(call.T); at += 4) {
      codes[(k_tile * call.T + at) / 4] = packed_word(source, tile, k_tile, at);
    }
  }
  for (int64_t group = 0; group < call.G; ++group) {
    for (int i = 0; i < kTileRows; ++i) {
      const int64_t row = tile * kTileRows + i;
      const int64_t to = (tile * call.G + group) * kTileRows + scale_place(i);
      store_scale(call, source, row, group, to);
    }
  }
}

void pack_zeros_of_row_tile(const PackZerosArguments& call, const Source& source, int64_t tile) {
  for (int64_t group = 0; group < call.G; ++group) {
    for (int i = 0; i < kTileRows; ++i) {
      const int64_t row = tile * kTileRows + i;
      const int64_t to = (tile * call.G + group) * kTileRows + scale_place(i);
      static_cast<uint8_t*>(call.packed_zeros.data)[to] =
          row < source.rows ? source_zero(source, row, group) : uint8_t{0};
    }
  }
}

void store_weight(const sdk::Tensor& weight, int64_t at, float value) {
  rows::with_element(weight.dtype,
                     [&]<class T>(T*) { rows::store(static_cast<T*>(weight.data) + at, value); });
}

void unpack_row(const UnpackArguments& call, const Matrix& matrix, int64_t row) {
  const int64_t columns = call.K;
  const int64_t row_tile = row / kTileRows;
  const int in_tile = static_cast<int>(row % kTileRows);
  const auto place_of_group = [&](int64_t group) {
    return (row_tile * matrix.groups + group) * kTileRows + scale_place(in_tile);
  };
  for (int64_t group = 0; group < matrix.groups; ++group) {
    const int64_t at = place_of_group(group);
    if (call.scales.present) {
      const auto bytes = static_cast<size_t>(scale_bytes(matrix.kind));
      memcpy(static_cast<uint8_t*>(call.scales.data) + (row * matrix.groups + group) * bytes,
             matrix.scales + at * bytes, bytes);
    }
    if (call.zeros.present) {
      static_cast<uint8_t*>(call.zeros.data)[row * matrix.groups + group] = matrix.zeros[at];
    }
  }
  for (int64_t k = 0; k < columns; ++k) {
    const int bits = bits_of(matrix.kind);
    const Place place = place_of(matrix.kind, in_tile, static_cast<int>(k % kTileDepth));
    const int64_t tile = row_tile * matrix.depth_tiles + k / kTileDepth;
    const int code = matrix.codes[tile * tile_bytes(matrix.kind) + place.byte] >> place.shift &
                     ((1 << bits) - 1);
    static_cast<uint8_t*>(call.codes.data)[row * columns + k] = static_cast<uint8_t>(code);
    if (!call.weight.present) continue;
    const int64_t at = place_of_group(k >> matrix.shift);
    const int zero = matrix.zeros != nullptr ? matrix.zeros[at] : middle_of(matrix.kind);
    const float value = matrix.kind == Codes::kE4m3 ? value_of_e4m3(static_cast<unsigned>(code))
                                                    : static_cast<float>(code - zero);
    store_weight(call.weight, row * columns + k, scale_of(call.packed_scales, at) * value);
  }
}

}  // namespace

size_t pack_workspace_bytes(const PackArguments&) {
  return 0;
}

int32_t pack(const PackArguments& call, kiln_error* error) {
  Source source;
  if (const int32_t status = check_pack(call, &source, error)) return status;
  rows::for_each(call.NR, source.rows * source.columns, call.threads,
                 [&](int64_t tile) { pack_row_tile(call, source, tile); });
  return KILN_OK;
}

size_t pack_zeros_workspace_bytes(const PackZerosArguments&) {
  return 0;
}

int32_t pack_zeros(const PackZerosArguments& call, kiln_error* error) {
  Source source;
  if (const int32_t status = check_pack_zeros(call, &source, error)) return status;
  rows::for_each(call.NR, source.rows * call.G, call.threads,
                 [&](int64_t tile) { pack_zeros_of_row_tile(call, source, tile); });
  return KILN_OK;
}

size_t unpack_workspace_bytes(const UnpackArguments&) {
  return 0;
}

int32_t unpack(const UnpackArguments& call, kiln_error* error) {
  Matrix matrix;
  if (const int32_t status = check_unpack(call, &matrix, error)) return status;
  rows::for_each(call.N, call.N * call.K, call.threads,
                 [&](int64_t row) { unpack_row(call, matrix, row); });
  return KILN_OK;
}

}  // namespace kiln::package
