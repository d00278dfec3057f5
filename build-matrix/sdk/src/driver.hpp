// SPDX-License-Identifier: Apache-2.0
//
// Driver: the functions of libcuda.so.1 that a package calls, found at run time. The required ones
// are all in driver 450 (CUDA 11.0), so the variant's own device code sets the driver floor, not
// this file. The types are declared here in a few lines, because no CUDA header is needed to build
// the host code of a package. Thread-safe; the driver stays loaded.
#pragma once

#include <kiln/sdk/types.hpp>

namespace kiln::sdk {

// Opaque handles of the driver API.
using CuContext = struct CuContextTag*;
using CuModule = struct CuModuleTag*;
using CuFunction = struct CuFunctionTag*;
using CuDevice = int;
using CuResult = int;

inline constexpr CuResult kCuSuccess = 0;
inline constexpr CuResult kCuNotInitialized = 3;

// Values of CUdevice_attribute and CUfunction_attribute, fixed by the driver's ABI.
inline constexpr int kCuMultiprocessors = 16;
inline constexpr int kCuCapabilityMajor = 75;
inline constexpr int kCuCapabilityMinor = 76;
inline constexpr int kCuSharedBytesPerBlockOptin = 97;
inline constexpr int kCuFunctionMaxDynamicSharedBytes = 8;

// CUlaunchAttribute and CUlaunchConfig of cuda.h, and the two attributes that are used.
inline constexpr int kCuLaunchClusterDimension = 4;
inline constexpr int kCuLaunchProgrammaticStreamSerialization = 6;
struct CuLaunchAttribute {
  int id;
  char padding[4];
  union {
    unsigned cluster[3];
    int flag;
    char bytes[64];
  } value;
};
static_assert(sizeof(CuLaunchAttribute) == 72);
struct CuLaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  void* stream;
  CuLaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(CuLaunchConfig) == 56);

// Values of CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion.
inline constexpr int kCuTensorMapFloat16 = 6;
inline constexpr int kCuTensorMapFloat32 = 7;
inline constexpr int kCuTensorMapBFloat16 = 9;
inline constexpr int kCuTensorMapSwizzle32 = 1;
inline constexpr int kCuTensorMapSwizzle64 = 2;
inline constexpr int kCuTensorMapSwizzle128 = 3;
inline constexpr int kCuTensorMapPromotion128 = 2;
inline constexpr int kCuTensorMapPromotion256 = 3;

inline constexpr int kCuda123 = 12030;  // as cuDriverGetVersion writes it

struct Driver {
  CuResult (*init)(unsigned flags);
  CuResult (*get_error_name)(CuResult result, const char** name);
  CuResult (*device_get)(CuDevice* device, int ordinal);
  CuResult (*device_get_attribute)(int* value, int attribute, CuDevice device);
  CuResult (*primary_context_retain)(CuContext* context, CuDevice device);
  CuResult (*context_get_current)(CuContext* context);
  CuResult (*context_get_device)(CuDevice* device);
  CuResult (*context_push)(CuContext context);
  CuResult (*context_pop)(CuContext* context);
  CuResult (*module_load_data)(CuModule* module, const void* image);
  CuResult (*module_unload)(CuModule module);
  CuResult (*module_get_function)(CuFunction* function, CuModule module, const char* name);
  CuResult (*function_set_attribute)(CuFunction function, int attribute, int value);
  CuResult (*launch_kernel)(CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, void* stream, void** arguments, void** extra);
  // Newer drivers only; null elsewhere.
  CuResult (*context_get_id)(CuContext context, unsigned long long* id);  // 12.0
  CuResult (*function_load)(CuFunction function);                         // 12.4
  CuResult (*launch_kernel_ex)(const CuLaunchConfig* config, CuFunction function, void** arguments,
                               void** extra);  // 11.8
  CuResult (*tensor_map_encode_tiled)(void* map, int type, unsigned rank, void* address,
                                      const unsigned long long* extents,
                                      const unsigned long long* strides, const unsigned* box,
                                      const unsigned* element_strides, int interleave, int swizzle,
                                      int promotion, int fill);  // 12.0
  int version;  // 12030 for CUDA 12.3; 0 if the driver does not say
};

// The driver, loaded at the first call. Null, with the reason in *error, where there is none.
const Driver* load_driver(kiln_error* error);

// "<what>: cuModuleLoadData failed with CUDA_ERROR_OUT_OF_MEMORY (2)", as KILN_DEVICE_ERROR.
int32_t driver_failure(const Driver& driver, const char* call, CuResult result, const char* what,
                       kiln_error* error);

}  // namespace kiln::sdk
