// SPDX-License-Identifier: Apache-2.0
//
// Element: the values of a tensor on the CPU, read as float and rounded as they are written.
#pragma once

#include <stdint.h>
#include <string.h>

#include <kiln/sdk/types.hpp>

namespace rows {

namespace sdk = kiln::sdk;

struct Bfloat16 {
  uint16_t bits;
};

inline float load(float value) {
  return value;
}
inline float load(_Float16 value) {
  return static_cast<float>(value);
}
inline float load(Bfloat16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float result;
  memcpy(&result, &bits, sizeof(result));
  return result;
}

inline void store(float* address, float value) {
  *address = value;
}
inline void store(_Float16* address, float value) {
  *address = static_cast<_Float16>(value);
}
// To nearest even; a NaN stays one.
inline void store(Bfloat16* address, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  address->bits = value != value ? static_cast<uint16_t>(bits >> 16 | 0x40)
                                 : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Row m; null of a tensor that was left out.
template <class T>
T* row(const sdk::Tensor& tensor, int64_t m) {
  return tensor.present ? static_cast<T*>(tensor.data) + m * tensor.stride[0] : nullptr;
}

// Calls `function` with a null pointer of the element type, for dtypes of these three.
template <class Function>
void with_element(sdk::DType dtype, const Function& function) {
  switch (dtype) {
    case sdk::DType::kFloat16:
      return function(static_cast<_Float16*>(nullptr));
    case sdk::DType::kBFloat16:
      return function(static_cast<Bfloat16*>(nullptr));
    default:
      return function(static_cast<float*>(nullptr));
  }
}

}  // namespace rows
