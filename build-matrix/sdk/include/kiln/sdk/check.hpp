// SPDX-License-Identifier: Apache-2.0
//
// Check: a call of the C ABI against the schema of its op. The build writes each op's schema as
// constant tables (package.gen.cpp); check_call walks them, so C, C++ and tvm-ffi callers are told
// the same thing in the same words. After it: the package's own function, with arguments for which
// every rule holds. Pure: no allocation, no globals but the tables.
#pragma once

#include <kiln/sdk/types.hpp>

namespace kiln::sdk {

/// What this library is; defined in package.gen.cpp.
struct Identity {
  const char* name;
  int32_t version;
  DLDeviceType device_type;
};
extern const Identity kIdentity;

inline constexpr int kMaxTensors = 32;
inline constexpr int kMaxSymbols = 32;
inline constexpr int kMaxAttributes = 16;
inline constexpr size_t kMaxTextBytes = 128;  // of a string attribute, its end included

enum class Layout : int32_t { kCompact, kRows };

struct ExtentRule {
  int32_t symbol;  // index into OpSchema::symbols; -1: the extent is `value`
  int64_t value;
};

struct TensorRule {
  const char* name;
  bool optional;
  Layout layout;
  int32_t same_dtype_as;  // index of an earlier, required tensor; -1: one of `dtypes`
  int32_t dtype_count;
  DType dtypes[kDTypeCount];
  int32_t dimensions;
  ExtentRule shape[kMaxDimensions];
};

// A checked attribute: the number; of a string its position in AttributeRule::values, or, where
// there are none, the caller's text, for as long as the call lasts.
union AttributeValue {
  int64_t as_int;
  double as_float;
  const char* as_text;
};

struct AttributeRule {
  const char* name;
  kiln_attribute_kind kind;
  const char* const* values;  // KILN_ATTRIBUTE_STRING: what is allowed; null: any text
  int32_t value_count;
  AttributeValue fallback;
};

// What is written, and another tensor of the call: whether both may be one.
struct PlaceRule {
  int32_t output;
  int32_t other;
  bool may_be_the_same;
};

struct OpSchema {
  const char* name;
  const TensorRule* tensors;
  int32_t tensor_count;
  const char* const* symbols;
  int32_t symbol_count;
  const AttributeRule* attributes;
  int32_t attribute_count;
  const PlaceRule* places;  // of the tensors that say "in_place"
  int32_t place_count;
};

// Where a check writes its results: the caller's arrays, in the schema's order and of its sizes.
struct Checked {
  Tensor* tensors;
  int64_t* symbols;
  AttributeValue* attributes;
};

// kShapes is for workspace_bytes: data pointers, workspace and stream are not looked at.
enum class CheckMode { kShapes, kRun };

int32_t check_call(const OpSchema& op, const kiln_call* call, CheckMode mode,
                   const Checked& checked, Placement* placement, kiln_error* error);

// The workspace of `placement` against what the package's workspace_bytes function said.
int32_t check_workspace(const OpSchema& op, const Placement& placement, size_t needed,
                        kiln_error* error);

}  // namespace kiln::sdk
