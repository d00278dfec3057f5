// SPDX-License-Identifier: Apache-2.0
//
// PyTorch by its stable C ABI alone, as torch/csrc/stable/c/shim.h of 2.10 has it: its functions
// are found in the libraries that the process has loaded, so that one binary serves every version
// from 2.10 on, and none is needed to build it. A handle of PyTorch's is a void*, an AOTITorchError
// an std::int32_t.
#pragma once

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kiln::torch {

using Value = std::uint64_t;  // StableIValue
/// Takes its arguments from the stack, to free, and leaves its results there.
using Kernel = void (*)(Value* stack, std::uint64_t arguments, std::uint64_t results);
constexpr std::uint64_t kAbi = (std::uint64_t{2} << 56U) | (std::uint64_t{10} << 48U);

#define KILN_TORCH_FUNCTIONS(X)                                                                   \
  X(aoti_torch_get_data_ptr, (void*, void**))                                                     \
  X(aoti_torch_get_dim, (void*, std::int64_t*))                                                   \
  X(aoti_torch_get_sizes, (void*, std::int64_t**))                                                \
  X(aoti_torch_get_strides, (void*, std::int64_t**))                                              \
  X(aoti_torch_get_dtype, (void*, std::int32_t*))                                                 \
  X(aoti_torch_get_device_type, (void*, std::int32_t*))                                           \
  X(aoti_torch_get_device_index, (void*, std::int32_t*))                                          \
  X(aoti_torch_delete_tensor_object, (void*))                                                     \
  X(aoti_torch_empty_strided, (std::int64_t, const std::int64_t*, const std::int64_t*,            \
                               std::int32_t, std::int32_t, std::int32_t, void**))                 \
  X(aoti_torch_device_type_cpu, ())                                                               \
  X(aoti_torch_dtype_uint8, ())                                                                   \
  X(aoti_torch_library_init_impl, (const char*, const char*, const char*, std::uint32_t, void**)) \
  X(torch_library_impl, (void*, const char*, Kernel, std::uint64_t))                              \
  X(torch_get_num_threads, (std::uint32_t*))                                                      \
  X(torch_new_list_reserve_size, (std::size_t, void**))                                           \
  X(torch_list_get_item, (void*, std::size_t, Value*))                                            \
  X(torch_list_push_back, (void*, Value))                                                         \
  X(torch_delete_list, (void*))                                                                   \
  X(torch_string_c_str, (void*, const char**))                                                    \
  X(torch_delete_string, (void*))

struct Functions {
#define X(name, arguments) std::int32_t(*name) arguments;  // NOLINT(bugprone-macro-parentheses)
  KILN_TORCH_FUNCTIONS(X)
#undef X
  /// Null: libtorch_cuda.so is not loaded.
  std::int32_t (*aoti_torch_get_current_cuda_stream)(std::int32_t, void**);
  /// Since 2.13; null before, where `delete` does it, and nothing tells what was thrown.
  std::int32_t (*torch_delete_stable_ivalue)(Value*);
  const char* (*torch_exception_get_what_without_backtrace)();
  /// Of the C++ library that PyTorch has: throws its std::runtime_error.
  void (*throw_runtime_error)(const char*);

  std::int32_t cpu;  // what these functions answer does not change
  std::int32_t uint8;
};

/// What find_functions has found; a null function was not.
extern Functions functions;

/// Null, or the name of what the process's PyTorch lacks.
const char* find_functions();

[[noreturn]] void fail(const char* what, const char* why = "");
/// Throws where a function of PyTorch failed.
void check(std::int32_t error, const char* what);

struct DeleteTensor {
  void operator()(void* tensor) const { functions.aoti_torch_delete_tensor_object(tensor); }
};
using Owned = std::unique_ptr<void, DeleteTensor>;

/// A tensor's address and layout; the extents are PyTorch's own, as long as the tensor lives.
struct View {
  DLTensor dl{};
  std::int32_t dtype = 0;
  std::int32_t device_type = 0;
  std::int32_t device_index = 0;
};
View view_of(void* tensor);

constexpr std::size_t kDimensions = 8;
/// A compact tensor on the device of `where`, by PyTorch's allocator.
Owned empty(const std::int64_t* extents, std::size_t rank, std::int32_t dtype, const View& where);

}  // namespace kiln::torch
