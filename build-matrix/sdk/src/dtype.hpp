// SPDX-License-Identifier: Apache-2.0
//
// Dtype: element types and devices of DLPack in Kiln's words, for the checker and its messages.
#pragma once

#include <kiln/sdk/types.hpp>

#include "text.hpp"

namespace kiln::sdk {

inline const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
  }
  return "?";
}

inline size_t dtype_bytes(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

inline bool to_dtype(DLDataType type, DType* out) {
  if (type.lanes != 1) return false;
  if (type.code == kDLFloat && type.bits == 32) {
    *out = DType::kFloat32;
  } else if (type.code == kDLFloat && type.bits == 16) {
    *out = DType::kFloat16;
  } else if (type.code == kDLBfloat && type.bits == 16) {
    *out = DType::kBFloat16;
  } else {
    return false;
  }
  return true;
}

// "float64", "int8", "float32x4"; "code 99 with 8 bits" for what DLPack has no name for.
inline Text& add_dtype(Text& text, DLDataType type) {
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
      return text.add("code %d with %d bits", type.code, type.bits);
  }
  text.add("%s%d", name, type.bits);
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
