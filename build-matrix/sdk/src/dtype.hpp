// SPDX-License-Identifier: Apache-2.0
//
// Dtype: element types and devices of DLPack in Kiln's words, for the checker and its messages.
#pragma once

#include <kiln/sdk/types.hpp>

#include "text.hpp"

namespace kiln::sdk {

struct DTypeFacts {
  const char* name;
  uint8_t code;  // of DLPack
  uint8_t bits;
};

// In the order of DType.
inline constexpr DTypeFacts kDTypes[kDTypeCount] = {
    {"float32", kDLFloat, 32},
    {"float16", kDLFloat, 16},
    {"bfloat16", kDLBfloat, 16},
    {"float64", kDLFloat, 64},
    {"float8_e4m3fn", KILN_DL_FLOAT8_E4M3FN, 8},
    {"float8_e5m2", KILN_DL_FLOAT8_E5M2, 8},
    {"int8", kDLInt, 8},
    {"int16", kDLInt, 16},
    {"int32", kDLInt, 32},
    {"int64", kDLInt, 64},
    {"uint8", kDLUInt, 8},
    {"bool", KILN_DL_BOOL, 8},
};

inline const char* dtype_name(DType dtype) {
  return kDTypes[static_cast<int32_t>(dtype)].name;
}

inline bool to_dtype(DLDataType type, DType* out) {
  if (type.lanes != 1) return false;
  for (int32_t i = 0; i < kDTypeCount; ++i) {
    if (type.code != kDTypes[i].code || type.bits != kDTypes[i].bits) continue;
    *out = static_cast<DType>(i);
    return true;
  }
  return false;
}

// "complex64", "int4", "float32x4"; "code 99 with 8 bits" for what has no name here.
inline Text& add_dtype(Text& text, DLDataType type) {
  DType known = DType::kFloat32;
  const char* name = nullptr;
  switch (type.code) {
    case kDLInt:
      name = "int";
      break;
    case kDLUInt:
      name = "uint";
      break;
    case kDLFloat:
      name = "float";
      break;
    case kDLBfloat:
      name = "bfloat";
      break;
    case kDLComplex:
      name = "complex";
      break;
    default:
      break;
  }
  if (to_dtype({type.code, type.bits, 1}, &known)) {
    text.add("%s", dtype_name(known));
  } else if (name != nullptr) {
    text.add("%s%d", name, type.bits);
  } else {
    return text.add("code %d with %d bits", type.code, type.bits);
  }
  if (type.lanes != 1) text.add("x%d", type.lanes);
  return text;
}

inline const char* device_type_name(int32_t type) {
  switch (type) {
    case kDLCPU:
      return "cpu";
    case kDLCUDA:
      return "cuda";
    case kDLCUDAHost:
      return "pinned host memory";
    case kDLCUDAManaged:
      return "managed memory";
    case kDLROCM:
      return "rocm";
    default:
      return nullptr;
  }
}

// "cuda:1", "cpu" (which has no numbers but in a test), "device type 99".
inline Text& add_device(Text& text, DLDevice device) {
  const char* name = device_type_name(device.device_type);
  if (name == nullptr) return text.add("device type %d", static_cast<int>(device.device_type));
  text.add("%s", name);
  if (device.device_type != kDLCPU || device.device_id != 0) text.add(":%d", device.device_id);
  return text;
}

}  // namespace kiln::sdk
