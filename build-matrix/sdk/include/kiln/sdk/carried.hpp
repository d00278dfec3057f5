// SPDX-License-Identifier: Apache-2.0
//
// Carried: shared libraries inside of a package, which `kiln pack` put there, and the functions of
// tvm-ffi that the last of them exports. The build writes the table of the files and the ops that
// call them (calls.gen.cpp).
//
// A library is loaded from a sealed copy in memory, so that what runs is what the loader hashed. It
// sees the libraries before it by their sonames. Where the process has one of that name already, as
// Python has libtvm_ffi.so, that one counts: two of them would not see each other's errors.
#pragma once

#include <kiln/sdk/glue.hpp>
#include <kiln/sdk/types.hpp>

#include <atomic>

namespace kiln::sdk {

struct Carried {
  const char* soname;
  const unsigned char* bytes;
  size_t size;
};
extern const Carried kCarried[];  // in load order; the library that ops call is the last
extern const int kCarriedCount;

// Loads them all, unless that is done. kiln_package.prepare calls it; an op does, at its first
// call.
int32_t load_carried(kiln_error* error);

// One exported function, and where it was found.
struct TvmFunction {
  const char* op;
  const char* symbol;
  std::atomic<void*> address = nullptr;
};

// The arguments of one call, in the function's order. They point into the op's arguments.
class TvmArguments {
 public:
  explicit TvmArguments(const DLDevice& device) : device_(device) {}
  void add(const Tensor& tensor, int dimensions);
  void add(int64_t number);
  void add(double number);
  void add(const char* text);

 private:
  friend int32_t call_tvm_ffi(TvmFunction&, const TvmArguments&, const Placement&, kiln_error*);
  TvmValue& next(int32_t type_index);

  DLDevice device_;
  int count_ = 0;
  int tensor_count_ = 0;
  TvmValue values_[kMaxTensors + kMaxAttributes];
  DLTensor tensors_[kMaxTensors];
};

// Calls it with the stream of the call as that of tvm-ffi's environment. Its error becomes one of
// ours, with the text that it raised.
int32_t call_tvm_ffi(TvmFunction& function, const TvmArguments& arguments,
                     const Placement& placement, kiln_error* error);

}  // namespace kiln::sdk
