// SPDX-License-Identifier: Apache-2.0
//
// Glue: what package.gen.cpp needs of the SDK besides the checker: the prepare function of the
// package's table and the tvm-ffi entry points. Packages do not include this.
#pragma once

#include <kiln/sdk/check.hpp>

namespace kiln::sdk {

// kiln_package.prepare: device.cpp loads the images; host.cpp, of CPU packages, asks Linux for the
// registers that a process does not have from its start.
int32_t prepare(DLDevice device, kiln_error* error);

// A value in tvm-ffi's calling convention (TVMFFIAny: 16 bytes, stable since its version 0.1): a
// type index, and the value itself or a pointer to a reference-counted object.
struct TvmValue {
  int32_t type_index;
  uint32_t small_length;  // of a string that is stored in `small`
  union {
    int64_t as_int;
    double as_float;
    void* as_pointer;
    const char* as_c_string;
    char small[8];
  };
};
static_assert(sizeof(TvmValue) == 16);

// The bodies of __tvm_ffi_<op>(tensors…, attributes…[, workspace]) and
// __tvm_ffi_<op>_workspace_bytes(tensors…, attributes…). None stands for an optional tensor left
// out and for an attribute's default; attributes at the end may be missing. Returns 0, or -1 with
// the error raised in tvm-ffi's thread-local state.
int tvm_ffi_run(const kiln_op& op, const OpSchema& schema, const TvmValue* arguments, int32_t count,
                TvmValue* result);
int tvm_ffi_workspace_bytes(const kiln_op& op, const OpSchema& schema, const TvmValue* arguments,
                            int32_t count, TvmValue* result);

}  // namespace kiln::sdk
