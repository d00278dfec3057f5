// SPDX-License-Identifier: Apache-2.0
//
// Sample_call: the sample package, compiled with the compiler at hand, and calls of its ops that a
// test can bend one field at a time.
#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/abi.h"
#include "sample_paths.hpp"

namespace sample {

inline const kiln_package& package() {
  static const kiln_package* const table = [] {
    void* library = dlopen(kiln::paths::kSampleLibrary, RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(library != nullptr, dlerror());
    void* symbol = dlsym(library, KILN_PACKAGE_SYMBOL);
    REQUIRE(symbol != nullptr);
    return reinterpret_cast<kiln_package_fn>(symbol)();
  }();
  return *table;
}

inline const kiln_op& op(std::string_view name) {
  const auto* const first = reinterpret_cast<const char*>(package().ops);
  for (std::uint32_t i = 0; i < package().op_count; ++i) {
    const auto& op = *reinterpret_cast<const kiln_op*>(first + i * package().op_stride);
    if (op.name == name) return op;
  }
  FAIL("no op " << name);
  return package().ops[0];
}

/// A tensor with its own memory; every field may be changed before the call.
struct Argument {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< empty: NULL, compact
  std::vector<float> values;
  DLDataType dtype = {kDLFloat, 32, 1};
  DLDevice device = {kDLCPU, 0};
  bool present = true;
  bool null_data = false;
  float* elsewhere = nullptr;         ///< where it stands in place of `values`
  std::int32_t extra_dimensions = 0;  ///< added to ndim only
  std::uint64_t byte_offset = 0;
  DLTensor dl = {};

  explicit Argument(std::vector<std::int64_t> extents) : shape(std::move(extents)) {
    std::int64_t count = 1;
    for (std::int64_t extent : shape) count *= extent;
    values.assign(static_cast<std::size_t>(count), 0.0F);
  }
  const DLTensor* get() {
    if (!present) return nullptr;
    dl.data = null_data ? nullptr : elsewhere != nullptr ? elsewhere : values.data();
    dl.device = device;
    dl.ndim = static_cast<std::int32_t>(shape.size()) + extra_dimensions;
    dl.dtype = dtype;
    dl.shape = shape.data();
    dl.strides = strides.empty() ? nullptr : strides.data();
    dl.byte_offset = byte_offset;
    return &dl;
  }
};

inline kiln_attribute text(const char* value) {
  kiln_attribute attribute{KILN_ATTRIBUTE_STRING, 0, {}};
  attribute.value.as_string = value;
  return attribute;
}
inline kiln_attribute number(std::int64_t value) {
  kiln_attribute attribute{KILN_ATTRIBUTE_INT, 0, {}};
  attribute.value.as_int = value;
  return attribute;
}
inline kiln_attribute real(double value) {
  kiln_attribute attribute{KILN_ATTRIBUTE_FLOAT, 0, {}};
  attribute.value.as_float = value;
  return attribute;
}

struct Call {
  const kiln_op& op;
  std::vector<Argument> arguments;
  std::vector<kiln_attribute> attributes;
  alignas(256) unsigned char memory[4096] = {};
  void* workspace = memory;
  std::size_t workspace_bytes = sizeof(memory);
  std::uint32_t struct_size = sizeof(kiln_call);
  std::int64_t count_offset = 0;            ///< added to tensor_count
  std::int64_t attribute_count_offset = 0;  ///< added to attribute_count
  bool null_tensors = false;
  bool null_attributes = false;
  kiln_error error = {};

  Call(std::string_view name, std::vector<Argument> tensors)
      : op(sample::op(name)), arguments(std::move(tensors)) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  kiln_call c() {
    pointers_.clear();
    for (Argument& argument : arguments) pointers_.push_back(argument.get());
    kiln_call call = {};
    call.struct_size = struct_size;
    call.tensor_count =
        static_cast<std::uint32_t>(static_cast<std::int64_t>(pointers_.size()) + count_offset);
    call.tensors = null_tensors ? nullptr : pointers_.data();
    call.attribute_count = static_cast<std::uint32_t>(static_cast<std::int64_t>(attributes.size()) +
                                                      attribute_count_offset);
    call.attributes = null_attributes ? nullptr : attributes.data();
    call.workspace = workspace;
    call.workspace_bytes = workspace_bytes;
    return call;
  }
  std::int32_t run() {
    const kiln_call call = c();
    return op.run(&call, &error);
  }
  std::int32_t size(std::size_t* bytes) {
    const kiln_call call = c();
    return op.workspace_bytes(&call, bytes, &error);
  }

 private:
  std::vector<const DLTensor*> pointers_;
};

/// x[2,3], w[4,3], bias[4], no table, y[2,4].
struct MixCall : Call {
  MixCall()
      : Call("mix", {Argument({2, 3}), Argument({4, 3}), Argument({4}), Argument({3, 3, 2}),
                     Argument({2, 4})}) {
    for (std::size_t i = 0; i < 6; ++i) x().values[i] = static_cast<float>(i + 1);
    for (std::size_t i = 0; i < 12; ++i) w().values[i] = static_cast<float>(i) - 4.0F;
    for (std::size_t i = 0; i < 4; ++i) bias().values[i] = 100.0F * static_cast<float>(i + 1);
    table().present = false;
    for (float& value : y().values) value = -1e30F;
  }
  Argument& x() { return arguments[0]; }
  Argument& w() { return arguments[1]; }
  Argument& bias() { return arguments[2]; }
  Argument& table() { return arguments[3]; }
  Argument& y() { return arguments[4]; }
};

/// in[2,3,4] and out[2,3,4], both of layout "rows".
struct CopyCall : Call {
  CopyCall() : Call("copy_rows", {Argument({2, 3, 4}), Argument({2, 3, 4})}) {
    for (std::size_t i = 0; i < in().values.size(); ++i) {
      in().values[i] = static_cast<float>(i + 1);
    }
  }
  Argument& in() { return arguments[0]; }
  Argument& out() { return arguments[1]; }
};

/// x and out [1,2,1,3,1,2,1,2], of any dtype; mask as them; kept[1].
struct KeepCall : Call {
  explicit KeepCall(DLDataType dtype) : Call("keep", {wide(), wide(), wide(), Argument({1})}) {
    x().dtype = out().dtype = dtype;
    mask().dtype = {KILN_DL_BOOL, 8, 1};
    kept().dtype = {kDLInt, 64, 1};
    for (Argument* argument : {&x(), &out(), &kept()}) {
      argument->values.resize(2 * argument->values.size());  // 8 bytes an element
    }
  }
  Argument& x() { return arguments[0]; }
  Argument& mask() { return arguments[1]; }
  Argument& out() { return arguments[2]; }
  Argument& kept() { return arguments[3]; }
  static std::uint8_t* bytes(Argument& argument) {
    return reinterpret_cast<std::uint8_t*>(argument.values.data());
  }

 private:
  static Argument wide() { return Argument({1, 2, 1, 3, 1, 2, 1, 2}); }
};

}  // namespace sample
