// SPDX-License-Identifier: Apache-2.0
//
// Types: what the generated glue hands to a package's own functions. A package is compiled without
// a C++ runtime (no exceptions, no RTTI, no allocation), so everything here is plain data.
//
// For each op of package.json the build generates, in "package.gen.hpp", a struct of checked
// arguments and the declarations of the two functions that the package writes:
//
//   struct ForwardArguments { Tensor x, gate, …; int64_t M, D, H; Approximate approximate; … };
//   size_t forward_workspace_bytes(const ForwardArguments&);
//   int32_t forward(const ForwardArguments&, kiln_error*);
//
// When they are called, every rule of the schema holds. A package with "needs" also writes, for its
// GPU variants, `prepare_libraries`, and finds the variant's sonames in `kLibraries`.
#pragma once

#include <kiln/abi.h>

namespace kiln::sdk {

// Element types. A package computes those that its schema allows and no others reach it.
enum class DType : int32_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat64,
  kFloat8E4M3FN,  // finite: no infinity, one NaN of each sign
  kFloat8E5M2,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kBool,  // a byte, 0 or 1
};
inline constexpr int kDTypeCount = 12;
size_t dtype_bytes(DType dtype);  // of one element

inline constexpr int kMaxDimensions = 8;

struct Tensor {
  bool present = false;  // false: an optional tensor that was left out
  DType dtype = DType::kFloat32;
  void* data = nullptr;  // byte_offset is already added; may be null when an extent is 0
  int64_t shape[kMaxDimensions] = {};
  int64_t stride[kMaxDimensions] = {};  // elements; the last one is 1
};

// The part of a call that every op has; the generated argument structs derive from it.
struct Placement {
  DLDevice device = {kDLCPU, 0};
  void* workspace = nullptr;  // 256-byte aligned, at least what the op's workspace_bytes said
  size_t workspace_bytes = 0;
  void* stream = nullptr;
  uint32_t threads = 0;  // the most that a CPU op may compute with, the caller's counted; 0: any
};

// The sonames of package.json's "needs" that this variant looks up at run time. The resolver has
// seen that the machine has them.
struct Libraries {
  const char* const* sonames;
  int count;
};

// Writes "<package>@<version> …" text and the status into *error and returns the status.
__attribute__((format(printf, 3, 4))) int32_t fail(kiln_error* error, kiln_status status,
                                                   const char* format, ...);

}  // namespace kiln::sdk
