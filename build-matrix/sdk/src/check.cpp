// SPDX-License-Identifier: Apache-2.0
#include <kiln/sdk/check.hpp>

#include <cstring>

#include "dtype.hpp"
#include "places.hpp"
#include "text.hpp"

namespace kiln::sdk {
namespace {

constexpr int kNoTensor = -1;
// Shapes of more dimensions than a schema may have are counted in a message, not printed.
constexpr int kPrintableDimensions = kMaxDimensions;

// The state of one check: what was asked, what is known so far, where a refusal goes.
struct Check {
  const OpSchema& op;
  const kiln_call& call;
  CheckMode mode;
  const Checked& checked;
  kiln_error* error;
  int binder[kMaxSymbols];  // which tensor bound each symbol
  int first = kNoTensor;    // the first tensor given: the others must lie on its device

  const char* name(int tensor) const { return op.tensors[tensor].name; }
};

// Its value is written out for the static analyser, which cannot see that fail() returns it.
#define KILN_REFUSE(error, ...) \
  (fail(error, KILN_INVALID_ARGUMENT, __VA_ARGS__), int32_t{KILN_INVALID_ARGUMENT})

// The schema's shape of a tensor, "[H, D]".
Text& add_expected(Text& text, const OpSchema& op, const TensorRule& rule) {
  text.add("[");
  for (int d = 0; d < rule.dimensions; ++d) {
    const ExtentRule& extent = rule.shape[d];
    if (d > 0) text.add(", ");
    if (extent.symbol >= 0) {
      text.add("%s", op.symbols[extent.symbol]);
    } else {
      text.add("%lld", static_cast<long long>(extent.value));
    }
  }
  return text.add("]");
}

int32_t refuse_shape(const Check& check, int index, const DLTensor& tensor) {
  const TensorRule& rule = check.op.tensors[index];
  Text text;
  if (tensor.ndim < 0 || tensor.ndim > kPrintableDimensions) {
    text.add("%d dimensions; expected ", static_cast<int>(tensor.ndim));
  } else {
    text.add("shape ").numbers(tensor.shape, tensor.ndim).add("; expected ");
  }
  add_expected(text, check.op, rule);
  if (tensor.ndim == rule.dimensions) {
    const char* separator = " with ";
    for (int d = 0; d < rule.dimensions; ++d) {
      const int symbol = rule.shape[d].symbol;
      if (symbol < 0 || check.checked.symbols[symbol] == tensor.shape[d]) continue;
      text.add("%s%s = %lld from %s", separator, check.op.symbols[symbol],
               static_cast<long long>(check.checked.symbols[symbol]),
               check.name(check.binder[symbol]));
      separator = ", ";
    }
  }
  return KILN_REFUSE(check.error, "%s: %s has %s", check.op.name, rule.name, text.c_str());
}

int32_t check_dtype(const Check& check, int index, const DLTensor& tensor, Tensor* out) {
  const TensorRule& rule = check.op.tensors[index];
  Text found;
  add_dtype(found, tensor.dtype);
  const bool known = to_dtype(tensor.dtype, &out->dtype);
  if (rule.same_dtype_as >= 0) {
    const DType wanted = check.checked.tensors[rule.same_dtype_as].dtype;
    if (known && out->dtype == wanted) return KILN_OK;
    return KILN_REFUSE(check.error, "%s: %s has dtype %s; expected %s, the dtype of %s",
                       check.op.name, rule.name, found.c_str(), dtype_name(wanted),
                       check.name(rule.same_dtype_as));
  }
  Text expected;
  for (int i = 0; i < rule.dtype_count; ++i) {
    if (known && out->dtype == rule.dtypes[i]) return KILN_OK;
    expected.separator(i, rule.dtype_count).add("%s", dtype_name(rule.dtypes[i]));
  }
  return KILN_REFUSE(check.error, "%s: %s has dtype %s; expected %s", check.op.name, rule.name,
                     found.c_str(), expected.c_str());
}

// Extents against the schema; binds each symbol at the first tensor that has it.
int32_t check_shape(Check& check, int index, const DLTensor& tensor, Tensor* out) {
  const TensorRule& rule = check.op.tensors[index];
  if (tensor.ndim > 0 && tensor.shape == nullptr) {
    return KILN_REFUSE(check.error, "%s: %s has %d dimensions but its shape pointer is NULL",
                       check.op.name, rule.name, static_cast<int>(tensor.ndim));
  }
  if (tensor.ndim != rule.dimensions) return refuse_shape(check, index, tensor);
  bool fits = true;
  for (int d = 0; d < rule.dimensions; ++d) {
    const int64_t extent = tensor.shape[d];
    if (extent < 0) {
      Text shape;
      shape.numbers(tensor.shape, tensor.ndim);
      return KILN_REFUSE(check.error, "%s: %s has shape %s; extents must not be negative",
                         check.op.name, rule.name, shape.c_str());
    }
    out->shape[d] = extent;
    const int symbol = rule.shape[d].symbol;
    if (symbol < 0) {
      fits = fits && extent == rule.shape[d].value;
    } else if (check.binder[symbol] == kNoTensor) {
      check.binder[symbol] = index;
      check.checked.symbols[symbol] = extent;
    } else {
      fits = fits && extent == check.checked.symbols[symbol];
    }
  }
  return fits ? static_cast<int32_t>(KILN_OK) : refuse_shape(check, index, tensor);
}

int32_t refuse_strides(const Check& check, int index, const DLTensor& tensor,
                       const int64_t* compact) {
  const TensorRule& rule = check.op.tensors[index];
  Text found;
  found.numbers(tensor.strides, tensor.ndim);
  Text expected;
  if (rule.layout == Layout::kCompact) {
    expected.numbers(compact, rule.dimensions).add(": row-major without gaps");
  } else {
    expected.add("a last stride of 1 and rows that do not overlap");
  }
  return KILN_REFUSE(check.error, "%s: %s has strides %s; expected %s; make it contiguous",
                     check.op.name, rule.name, found.c_str(), expected.c_str());
}

int32_t refuse_size(const Check& check, int index, const DLTensor& tensor) {
  Text shape;
  shape.numbers(tensor.shape, tensor.ndim);
  if (tensor.strides != nullptr) shape.add(" and strides ").numbers(tensor.strides, tensor.ndim);
  return KILN_REFUSE(check.error, "%s: %s has shape %s: more bytes than 63 bits count",
                     check.op.name, check.name(index), shape.c_str());
}

// Strides against the layout, and the size of the whole. The strides of a dimension of extent 1 and
// those of an empty tensor mean nothing, so any are accepted and replaced by the compact ones.
int32_t check_strides(const Check& check, int index, const DLTensor& tensor, Tensor* out) {
  const TensorRule& rule = check.op.tensors[index];
  const int dimensions = rule.dimensions;
  bool empty = false;
  for (int d = 0; d < dimensions; ++d) empty = empty || out->shape[d] == 0;
  const auto item = static_cast<int64_t>(dtype_bytes(out->dtype));

  int64_t span = 1;  // elements from the first to one past the last
  for (int d = dimensions - 1; d >= 0; --d) {
    out->stride[d] = span;
    if (!empty && __builtin_mul_overflow(span, out->shape[d], &span)) {
      return refuse_size(check, index, tensor);
    }
  }
  if (!empty && tensor.strides != nullptr) {
    // "rows" frees the distance of the rows only: the dimensions before it must still be compact.
    int64_t expected = 1;
    bool fits = true;
    for (int d = dimensions - 1; d >= 0; --d) {
      const int64_t given = tensor.strides[d];
      const bool row = rule.layout == Layout::kRows && d == dimensions - 2;
      if (out->shape[d] > 1) {
        fits = fits && (row ? given >= expected : given == expected);
        if (fits) expected = given;
      }
      if (fits) out->stride[d] = expected;
      if (fits && __builtin_mul_overflow(expected, out->shape[d], &expected)) {
        return refuse_size(check, index, tensor);
      }
    }
    if (!fits) return refuse_strides(check, index, tensor, out->stride);
    span = expected;
  }
  int64_t bytes = 0;
  if (!empty && __builtin_mul_overflow(span, item, &bytes)) {
    return refuse_size(check, index, tensor);
  }
  return KILN_OK;
}

int32_t check_device(Check& check, int index, const DLTensor& tensor) {
  if (tensor.device.device_type != kIdentity.device_type) {
    Text found;
    add_device(found, tensor.device);
    return KILN_REFUSE(check.error, "%s: %s is on %s; expected %s, for which this variant is built",
                       check.op.name, check.name(index), found.c_str(),
                       device_type_name(kIdentity.device_type));
  }
  if (check.first == kNoTensor) {
    check.first = index;
    return KILN_OK;
  }
  const DLDevice& first = check.call.tensors[check.first]->device;
  if (tensor.device.device_id == first.device_id) return KILN_OK;
  Text found;
  add_device(found, tensor.device);
  Text expected;
  add_device(expected, first);
  return KILN_REFUSE(check.error, "%s: %s is on %s; expected %s, the device of %s", check.op.name,
                     check.name(index), found.c_str(), expected.c_str(), check.name(check.first));
}

int32_t check_data(const Check& check, int index, const DLTensor& tensor, Tensor* out) {
  for (int d = 0; d < tensor.ndim; ++d) {
    if (tensor.shape[d] == 0) {
      out->data = tensor.data;
      return KILN_OK;  // no element: the pointer is never followed
    }
  }
  if (tensor.data == nullptr) {
    Text shape;
    shape.numbers(tensor.shape, tensor.ndim);
    return KILN_REFUSE(check.error, "%s: %s has shape %s but its data pointer is NULL",
                       check.op.name, check.name(index), shape.c_str());
  }
  out->data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  const size_t item = dtype_bytes(out->dtype);
  if (reinterpret_cast<uintptr_t>(out->data) % item == 0) return KILN_OK;
  return KILN_REFUSE(check.error,
                     "%s: %s starts at address %p; expected a multiple of %zu, the size of %s",
                     check.op.name, check.name(index), out->data, item, dtype_name(out->dtype));
}

int32_t check_tensor(Check& check, int index) {
  const TensorRule& rule = check.op.tensors[index];
  const DLTensor* tensor = check.call.tensors[index];
  Tensor* out = &check.checked.tensors[index];
  *out = Tensor{};
  if (tensor == nullptr) {
    if (rule.optional) return KILN_OK;
    return KILN_REFUSE(check.error, "%s: %s is missing; it is not optional", check.op.name,
                       rule.name);
  }
  out->present = true;
  int32_t status = check_dtype(check, index, *tensor, out);
  if (status == KILN_OK) status = check_shape(check, index, *tensor, out);
  if (status == KILN_OK) status = check_strides(check, index, *tensor, out);
  if (status == KILN_OK) status = check_device(check, index, *tensor);
  if (status == KILN_OK && check.mode == CheckMode::kRun) {
    status = check_data(check, index, *tensor, out);
  }
  return status;
}

const char* kind_name(int32_t kind) {
  switch (kind) {
    case KILN_ATTRIBUTE_INT:
      return "an int";
    case KILN_ATTRIBUTE_FLOAT:
      return "a float";
    case KILN_ATTRIBUTE_STRING:
      return "a string";
    default:
      return "of an unknown kind";
  }
}

int32_t check_string(const Check& check, const AttributeRule& rule, const char* given,
                     AttributeValue* out) {
  if (given == nullptr) {
    return KILN_REFUSE(check.error, "%s: %s is a NULL string", check.op.name, rule.name);
  }
  if (rule.values == nullptr) {
    if (strnlen(given, kMaxTextBytes) == kMaxTextBytes) {
      return KILN_REFUSE(check.error, "%s: %s is \"%.40s…\"; expected fewer than %zu bytes",
                         check.op.name, rule.name, given, kMaxTextBytes);
    }
    out->as_text = given;
    return KILN_OK;
  }
  Text expected;
  for (int i = 0; i < rule.value_count; ++i) {
    if (strcmp(given, rule.values[i]) == 0) {
      out->as_int = i;
      return KILN_OK;
    }
    expected.separator(i, rule.value_count).add("\"%s\"", rule.values[i]);
  }
  return KILN_REFUSE(check.error, "%s: %s is \"%.40s\"; expected %s", check.op.name, rule.name,
                     given, expected.c_str());
}

int32_t check_attribute(const Check& check, int index) {
  const AttributeRule& rule = check.op.attributes[index];
  AttributeValue* out = &check.checked.attributes[index];
  *out = rule.fallback;
  if (static_cast<uint32_t>(index) >= check.call.attribute_count) return KILN_OK;
  const kiln_attribute& given = check.call.attributes[index];
  if (given.kind == KILN_ATTRIBUTE_DEFAULT) return KILN_OK;
  if (given.kind != static_cast<int32_t>(rule.kind)) {
    return KILN_REFUSE(check.error, "%s: %s is %s; expected %s", check.op.name, rule.name,
                       kind_name(given.kind), kind_name(rule.kind));
  }
  switch (rule.kind) {
    case KILN_ATTRIBUTE_STRING:
      return check_string(check, rule, given.value.as_string, out);
    case KILN_ATTRIBUTE_FLOAT:
      out->as_float = given.value.as_float;
      return KILN_OK;
    default:
      out->as_int = given.value.as_int;
      return KILN_OK;
  }
}

int32_t check_counts(const OpSchema& op, const kiln_call* call, kiln_error* error) {
  if (call == nullptr) return KILN_REFUSE(error, "%s: the call is NULL", op.name);
  if (call->struct_size < KILN_CALL_FIRST_BYTES) {
    return KILN_REFUSE(error,
                       "%s: kiln_call.struct_size is %u; expected at least %zu: set it to "
                       "sizeof(kiln_call)",
                       op.name, static_cast<unsigned>(call->struct_size), KILN_CALL_FIRST_BYTES);
  }
  if (call->tensor_count != static_cast<uint32_t>(op.tensor_count)) {
    Text names;
    for (int i = 0; i < op.tensor_count; ++i) {
      names.add("%s%s%s", i > 0 ? ", " : "", op.tensors[i].name,
                op.tensors[i].optional ? " (or NULL)" : "");
    }
    return KILN_REFUSE(error, "%s: %u tensors given; expected %d: %s", op.name,
                       static_cast<unsigned>(call->tensor_count), static_cast<int>(op.tensor_count),
                       names.c_str());
  }
  if (call->attribute_count > static_cast<uint32_t>(op.attribute_count)) {
    return KILN_REFUSE(error, "%s: %u attributes given; expected at most %d", op.name,
                       static_cast<unsigned>(call->attribute_count),
                       static_cast<int>(op.attribute_count));
  }
  if (call->tensors == nullptr || (call->attribute_count > 0 && call->attributes == nullptr)) {
    return KILN_REFUSE(error, "%s: kiln_call.%s is NULL", op.name,
                       call->tensors == nullptr ? "tensors" : "attributes");
  }
  return KILN_OK;
}

}  // namespace

size_t dtype_bytes(DType dtype) {
  return kDTypes[static_cast<int32_t>(dtype)].bits / 8;
}

int32_t check_call(const OpSchema& op, const kiln_call* call, CheckMode mode,
                   const Checked& checked, Placement* placement, kiln_error* error) {
  int32_t status = check_counts(op, call, error);
  if (status != KILN_OK) return status;
  Check check{op, *call, mode, checked, error, {}};
  for (int s = 0; s < op.symbol_count; ++s) check.binder[s] = kNoTensor;
  for (int i = 0; i < op.tensor_count && status == KILN_OK; ++i) status = check_tensor(check, i);
  for (int i = 0; i < op.attribute_count && status == KILN_OK; ++i) {
    status = check_attribute(check, i);
  }
  if (status == KILN_OK && mode == CheckMode::kRun)
    status = check_places(op, checked.tensors, error);
  if (status != KILN_OK) return status;
  placement->device = call->tensors[check.first]->device;
  if (mode == CheckMode::kRun) {
    placement->workspace = call->workspace;
    placement->workspace_bytes = call->workspace_bytes;
    placement->stream = call->stream;
    placement->threads = call->threads;
  }
  return KILN_OK;
}

int32_t check_workspace(const OpSchema& op, const Placement& placement, size_t needed,
                        kiln_error* error) {
  constexpr uintptr_t kAlignment = 256;
  if (needed == 0) return KILN_OK;
  if (placement.workspace == nullptr || placement.workspace_bytes < needed) {
    return fail(error, KILN_INVALID_ARGUMENT,
                "%s: the workspace has %zu bytes; expected at least %zu, as workspace_bytes() says "
                "for these arguments",
                op.name, placement.workspace == nullptr ? size_t{0} : placement.workspace_bytes,
                needed);
  }
  if (reinterpret_cast<uintptr_t>(placement.workspace) % kAlignment != 0) {
    return fail(error, KILN_INVALID_ARGUMENT,
                "%s: the workspace starts at address %p; expected a multiple of %d", op.name,
                placement.workspace, static_cast<int>(kAlignment));
  }
  return KILN_OK;
}

}  // namespace kiln::sdk
