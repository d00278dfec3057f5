// SPDX-License-Identifier: Apache-2.0
//
// Tvm_ffi: the ops of a package as functions of tvm-ffi's C calling convention, so that Python (and
// whatever else speaks it) loads the same library that C++ does. Nothing of tvm-ffi is linked: its
// two functions are looked up when they are needed, in the process that calls us and so has them.
// Weak references would not do: they are bound once, and stay null if this library came first.
#include <dlfcn.h>

#include <cstring>

#include <kiln/sdk/glue.hpp>

#include "dtype.hpp"
#include "text.hpp"

namespace kiln::sdk {
namespace {

// Type indices of the stable ABI.
constexpr int32_t kTvmNone = 0;
constexpr int32_t kTvmInt = 1;
constexpr int32_t kTvmBool = 2;
constexpr int32_t kTvmFloat = 3;
constexpr int32_t kTvmDlTensor = 7;  // DLTensor*
constexpr int32_t kTvmCString = 8;
constexpr int32_t kTvmSmallString = 11;  // in the value itself
constexpr int32_t kTvmString = 65;       // object: header, then pointer and size
constexpr int32_t kTvmTensor = 70;       // object: header, then DLTensor

// Every object starts with: 8 bytes of reference counts, type index, padding, deleter.
constexpr size_t kTvmObjectHeaderBytes = 24;

struct TvmBytes {
  const char* data;
  size_t size;
};

// What the C ABI asks of a workspace. A framework's allocator may promise less (64 bytes on the
// CPU), so workspace_bytes adds this much here, and run moves the start up to the next multiple.
constexpr size_t kWorkspaceAlignment = 256;

// Of a longer value the checker sees so much that it refuses it.
constexpr size_t kMaxStringBytes = kMaxTextBytes + 1;

// A call in the making: the C ABI's structs, and what they point to.
struct TvmCall {
  const DLTensor* tensors[kMaxTensors];
  kiln_attribute attributes[kMaxAttributes];
  char strings[kMaxAttributes][kMaxStringBytes];
  const DLTensor* workspace;
  kiln_call call;
};

const DLTensor* as_tensor(const TvmValue& value) {
  if (value.type_index == kTvmDlTensor) return static_cast<const DLTensor*>(value.as_pointer);
  if (value.type_index == kTvmTensor) {
    return reinterpret_cast<const DLTensor*>(static_cast<const char*>(value.as_pointer) +
                                             kTvmObjectHeaderBytes);
  }
  return nullptr;
}

bool as_text(const TvmValue& value, TvmBytes* text) {
  switch (value.type_index) {
    case kTvmCString:
      *text = {value.as_c_string, strlen(value.as_c_string)};
      return true;
    case kTvmSmallString:
      *text = {value.small, value.small_length};
      return true;
    case kTvmString:
      memcpy(text, static_cast<const char*>(value.as_pointer) + kTvmObjectHeaderBytes,
             sizeof(*text));
      return true;
    default:
      return false;
  }
}

int32_t read_attribute(const OpSchema& op, int index, const TvmValue& value, TvmCall* out,
                       kiln_error* error) {
  kiln_attribute* attribute = &out->attributes[index];
  const AttributeRule& rule = op.attributes[index];
  TvmBytes text{};
  if (value.type_index == kTvmNone) {
    attribute->kind = KILN_ATTRIBUTE_DEFAULT;
  } else if (value.type_index == kTvmInt || value.type_index == kTvmBool) {
    // A whole number is a fine float to a Python caller.
    const bool as_float = rule.kind == KILN_ATTRIBUTE_FLOAT;
    attribute->kind = as_float ? KILN_ATTRIBUTE_FLOAT : KILN_ATTRIBUTE_INT;
    if (as_float) {
      attribute->value.as_float = static_cast<double>(value.as_int);
    } else {
      attribute->value.as_int = value.as_int;
    }
  } else if (value.type_index == kTvmFloat) {
    attribute->kind = KILN_ATTRIBUTE_FLOAT;
    attribute->value.as_float = value.as_float;
  } else if (as_text(value, &text)) {
    const size_t size = text.size < kMaxStringBytes ? text.size : kMaxStringBytes - 1;
    memcpy(out->strings[index], text.data, size);
    out->strings[index][size] = '\0';
    attribute->kind = KILN_ATTRIBUTE_STRING;
    attribute->value.as_string = out->strings[index];
  } else {
    return fail(error, KILN_INVALID_ARGUMENT,
                "%s: %s is neither a string, a number nor None (tvm-ffi type %d)", op.name,
                rule.name, static_cast<int>(value.type_index));
  }
  return KILN_OK;
}

// "x, gate, y, approximate, workspace": what the function takes.
Text parameters(const OpSchema& op) {
  Text text;
  for (int i = 0; i < op.tensor_count; ++i) text.add("%s%s", i > 0 ? ", " : "", op.tensors[i].name);
  for (int i = 0; i < op.attribute_count; ++i) text.add(", %s", op.attributes[i].name);
  return text.add(", workspace");
}

// Splits the arguments: the schema's tensors, then attributes up to the first tensor, which is the
// workspace and the last of all. Too few tensors are left for the checker to refuse.
int32_t read_arguments(const OpSchema& op, const TvmValue* arguments, int32_t count, TvmCall* out,
                       kiln_error* error) {
  int next = 0;
  for (; next < count && next < op.tensor_count; ++next) {
    out->tensors[next] = as_tensor(arguments[next]);
    if (out->tensors[next] == nullptr && arguments[next].type_index != kTvmNone) {
      return fail(error, KILN_INVALID_ARGUMENT,
                  "%s: %s is neither a tensor nor None (tvm-ffi type %d)", op.name,
                  op.tensors[next].name, static_cast<int>(arguments[next].type_index));
    }
  }
  int attributes = 0;
  for (; next < count && attributes < op.attribute_count; ++next, ++attributes) {
    if (as_tensor(arguments[next]) != nullptr) break;
    const int32_t status = read_attribute(op, attributes, arguments[next], out, error);
    if (status != KILN_OK) return status;
  }
  out->workspace = nullptr;
  if (next < count) {
    out->workspace = as_tensor(arguments[next]);
    const bool understood = out->workspace != nullptr || arguments[next].type_index == kTvmNone;
    if (!understood || next + 1 < count) {
      return fail(error, KILN_INVALID_ARGUMENT, "%s: %d arguments given; expected (%s)", op.name,
                  static_cast<int>(count), parameters(op).c_str());
    }
  }
  const int tensors = count < op.tensor_count ? count : op.tensor_count;
  out->call = {};
  out->call.struct_size = sizeof(kiln_call);
  out->call.tensor_count = static_cast<uint32_t>(tensors < 0 ? 0 : tensors);
  out->call.tensors = out->tensors;
  out->call.attribute_count = static_cast<uint32_t>(attributes);
  out->call.attributes = out->attributes;
  return KILN_OK;
}

size_t with_slack(size_t needed) {
  return needed == 0 ? 0 : needed + kWorkspaceAlignment;
}

// Takes the last argument as workspace: any contiguous tensor of bytes on the tensors' device.
int32_t read_workspace(const OpSchema& op, size_t needed, const DLDevice& device, TvmCall* out,
                       kiln_error* error) {
  if (out->workspace == nullptr) {
    if (needed == 0) return KILN_OK;
    return fail(error, KILN_INVALID_ARGUMENT,
                "%s: needs a workspace of %zu bytes; pass a uint8 tensor of that size as the last "
                "argument (%s_workspace_bytes, called with the same arguments, tells the size)",
                op.name, with_slack(needed), op.name);
  }
  const DLTensor& tensor = *out->workspace;
  if (tensor.dtype.code != kDLUInt || tensor.dtype.bits != 8 || tensor.dtype.lanes != 1 ||
      tensor.ndim != 1 || tensor.shape[0] < 0 ||
      (tensor.strides != nullptr && tensor.strides[0] != 1 && tensor.shape[0] > 1)) {
    Text found;
    add_dtype(found, tensor.dtype);
    return fail(error, KILN_INVALID_ARGUMENT,
                "%s: the workspace is a tensor of %s with %d dimensions; expected uint8 with one, "
                "contiguous",
                op.name, found.c_str(), static_cast<int>(tensor.ndim));
  }
  if (tensor.device.device_type != device.device_type ||
      tensor.device.device_id != device.device_id) {
    Text found;
    add_device(found, tensor.device);
    Text expected;
    add_device(expected, device);
    return fail(error, KILN_INVALID_ARGUMENT,
                "%s: the workspace is on %s; expected %s, where the tensors are", op.name,
                found.c_str(), expected.c_str());
  }
  if (tensor.data == nullptr) return KILN_OK;
  char* start = static_cast<char*>(tensor.data) + tensor.byte_offset;
  const size_t skip =
      (kWorkspaceAlignment - reinterpret_cast<uintptr_t>(start) % kWorkspaceAlignment) %
      kWorkspaceAlignment;
  const auto bytes = static_cast<size_t>(tensor.shape[0]);
  if (bytes <= skip) return KILN_OK;
  out->call.workspace = start + skip;
  out->call.workspace_bytes = bytes - skip;
  return KILN_OK;
}

// The stream that the caller's framework works on, as tvm-ffi knows it.
void* current_stream(const DLDevice& device) {
  using GetStream = void* (*)(int32_t device_type, int32_t device_id);
  if (device.device_type == kDLCPU) return nullptr;
  const auto get = reinterpret_cast<GetStream>(dlsym(RTLD_DEFAULT, "TVMFFIEnvGetStream"));
  return get == nullptr ? nullptr : get(device.device_type, device.device_id);
}

int raise(const kiln_error& error) {
  using SetRaised = void (*)(const char* kind, const char* message);
  const auto set = reinterpret_cast<SetRaised>(dlsym(RTLD_DEFAULT, "TVMFFIErrorSetRaisedFromCStr"));
  if (set != nullptr) {
    set(error.status == KILN_INVALID_ARGUMENT ? "ValueError" : "RuntimeError", error.text);
  }
  return -1;
}

const DLTensor* first_tensor(const kiln_call& call) {
  for (uint32_t i = 0; i < call.tensor_count; ++i) {
    if (call.tensors[i] != nullptr) return call.tensors[i];
  }
  return nullptr;
}

}  // namespace

int tvm_ffi_run(const kiln_op& op, const OpSchema& schema, const TvmValue* arguments, int32_t count,
                TvmValue* result) {
  TvmCall call;
  kiln_error error;
  size_t needed = 0;
  int32_t status = read_arguments(schema, arguments, count, &call, &error);
  // Checks the shapes too, so that there is a first tensor after it.
  if (status == KILN_OK) status = op.workspace_bytes(&call.call, &needed, &error);
  if (status != KILN_OK) return raise(error);
  const DLDevice device = first_tensor(call.call)->device;
  status = read_workspace(schema, needed, device, &call, &error);
  if (status == KILN_OK) {
    call.call.stream = current_stream(device);
    status = op.run(&call.call, &error);
  }
  if (status != KILN_OK) return raise(error);
  *result = {kTvmNone, 0, {0}};
  return 0;
}

int tvm_ffi_workspace_bytes(const kiln_op& op, const OpSchema& schema, const TvmValue* arguments,
                            int32_t count, TvmValue* result) {
  TvmCall call;
  kiln_error error;
  size_t needed = 0;
  int32_t status = read_arguments(schema, arguments, count, &call, &error);
  if (status == KILN_OK) status = op.workspace_bytes(&call.call, &needed, &error);
  if (status != KILN_OK) return raise(error);
  *result = {kTvmInt, 0, {static_cast<int64_t>(with_slack(needed))}};
  return 0;
}

}  // namespace kiln::sdk
