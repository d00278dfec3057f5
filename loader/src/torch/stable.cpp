// SPDX-License-Identifier: Apache-2.0
#include "torch/stable.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <stdexcept>

#include "kiln/abi.h"

namespace kiln::torch {

Functions functions;

namespace {

std::array<DLDataType, 128> dtypes;  // by PyTorch's number; no lanes: no op of Kiln takes it

struct Dtype {
  const char* function;
  DLDataType type;
};
constexpr std::array<Dtype, 12> kDtypes{{
    {"aoti_torch_dtype_float32", {kDLFloat, 32, 1}},
    {"aoti_torch_dtype_float16", {kDLFloat, 16, 1}},
    {"aoti_torch_dtype_bfloat16", {kDLBfloat, 16, 1}},
    {"aoti_torch_dtype_float64", {kDLFloat, 64, 1}},
    {"aoti_torch_dtype_int8", {kDLInt, 8, 1}},
    {"aoti_torch_dtype_int16", {kDLInt, 16, 1}},
    {"aoti_torch_dtype_int32", {kDLInt, 32, 1}},
    {"aoti_torch_dtype_int64", {kDLInt, 64, 1}},
    {"aoti_torch_dtype_uint8", {kDLUInt, 8, 1}},
    {"aoti_torch_dtype_bool", {KILN_DL_BOOL, 8, 1}},
    {"aoti_torch_dtype_float8_e4m3fn", {KILN_DL_FLOAT8_E4M3FN, 8, 1}},
    {"aoti_torch_dtype_float8_e5m2", {KILN_DL_FLOAT8_E5M2, 8, 1}},
}};

/// A library that the process has, and keeps.
void* loaded(const char* name) {
  return dlopen(name, RTLD_NOLOAD | RTLD_LAZY | RTLD_NODELETE);
}

template <class Function>
bool found(void* library, const char* name, Function& place) {
  if (library != nullptr) place = reinterpret_cast<Function>(dlsym(library, name));
  return place != nullptr;
}

}  // namespace

const char* find_functions() {
  const char* const thrower = "_ZSt21__throw_runtime_errorPKc";  // std::__throw_runtime_error
  if (!found(loaded("libstdc++.so.6"), thrower, functions.throw_runtime_error)) return thrower;
  void* const library = loaded("libtorch_cpu.so");
#define X(name, arguments) \
  if (!found(library, #name, functions.name)) return #name;
  KILN_TORCH_FUNCTIONS(X)
#undef X
  found(library, "torch_delete_stable_ivalue", functions.torch_delete_stable_ivalue);
  found(library, "torch_exception_get_what_without_backtrace",
        functions.torch_exception_get_what_without_backtrace);
  for (const Dtype& each : kDtypes) {
    std::int32_t (*number)() = nullptr;
    if (!found(library, each.function, number)) return each.function;
    const auto place = static_cast<std::size_t>(number());
    if (place < dtypes.size()) dtypes[place] = each.type;
  }
  functions.cpu = functions.aoti_torch_device_type_cpu();
  functions.uint8 = functions.aoti_torch_dtype_uint8();
  void* const cuda = loaded("libtorch_cuda.so");
  const char* const stream = "aoti_torch_get_current_cuda_stream";
  const bool streams = found(cuda, stream, functions.aoti_torch_get_current_cuda_stream);
  return cuda != nullptr && !streams ? stream : nullptr;
}

void fail(const char* what, const char* why) {
  std::array<char, 1024> text{};
  (void)std::snprintf(text.data(), text.size(), "kiln: %s%s", what, why);
  throw std::runtime_error(text.data());
}

void check(std::int32_t error, const char* what) {
  if (error == 0) return;
  const auto why = functions.torch_exception_get_what_without_backtrace;
  fail(what, why != nullptr ? why() : "");
}

View view_of(void* tensor) {
  View view;
  std::int64_t rank = 0;
  check(functions.aoti_torch_get_data_ptr(tensor, &view.dl.data) |
            functions.aoti_torch_get_dim(tensor, &rank) |
            functions.aoti_torch_get_sizes(tensor, &view.dl.shape) |
            functions.aoti_torch_get_strides(tensor, &view.dl.strides) |
            functions.aoti_torch_get_dtype(tensor, &view.dtype) |
            functions.aoti_torch_get_device_type(tensor, &view.device_type) |
            functions.aoti_torch_get_device_index(tensor, &view.device_index),
        "reading a tensor failed in PyTorch. ");
  view.dl.ndim = static_cast<std::int32_t>(rank);
  const auto number = static_cast<std::size_t>(view.dtype);
  if (number >= dtypes.size() || dtypes[number].lanes == 0) {
    fail("a tensor has a dtype that no op takes");
  }
  view.dl.dtype = dtypes[number];
  const bool on_cpu = view.device_type == functions.cpu;
  view.dl.device = on_cpu ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, view.device_index};
  return view;
}

Owned empty(const std::int64_t* extents, std::size_t rank, std::int32_t dtype, const View& where) {
  std::array<std::int64_t, kDimensions> strides{};
  std::int64_t stride = 1;
  for (std::size_t i = rank; i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(extents[i], 1);
  }
  void* tensor = nullptr;
  check(functions.aoti_torch_empty_strided(static_cast<std::int64_t>(rank), extents, strides.data(),
                                           dtype, where.device_type, where.device_index, &tensor),
        "making a tensor failed in PyTorch. ");
  return Owned(tensor);
}

}  // namespace kiln::torch
