// SPDX-License-Identifier: Apache-2.0
#include "documents/ops.hpp"

#include <algorithm>

#include "base/join.hpp"
#include "documents/json.hpp"

namespace kiln {
namespace {

/// Of one that follows another tensor of its op, "as x".
std::string dtype_of(const JsonView& tensor, const std::vector<JsonView>& tensors) {
  const JsonView dtype = tensor.at("dtype");
  if (!dtype.json().is_string()) return join(dtype.items(), ", ", &JsonView::string);
  const bool follows = std::ranges::any_of(
      tensors, [&](const JsonView& other) { return other.at("name").string() == dtype.string(); });
  return (follows ? "as " : "") + dtype.string();
}

/// "N" of a symbol, "4" of a number.
std::string extent_of(const JsonView& extent) {
  return extent.json().is_string() ? extent.string() : std::to_string(extent.unsigned_integer());
}

TensorText read_tensor(const JsonView& tensor, const std::vector<JsonView>& tensors) {
  const auto is = [&](const char* key) { return tensor.has(key) && tensor.at(key).boolean(); };
  return {.name = tensor.at("name").string(),
          .dtype = dtype_of(tensor, tensors),
          .shape = "[" + join(tensor.at("shape").items(), ", ", extent_of) + "]",
          .layout = tensor.string_or("layout", ""),
          .output = is("output"),
          .inout = is("inout"),
          .optional = is("optional")};
}

AttributeText read_attribute(const JsonView& attribute) {
  AttributeText read{attribute.at("name").string(), attribute.at("type").string()};
  if (attribute.has("values")) {
    read.meaning += ": " + join(attribute.at("values").items(), ", ", &JsonView::string);
  }
  if (attribute.has("default"))
    read.meaning += ", default " + attribute.at("default").json().dump();
  return read;
}

OpText read_op(const JsonView& op) {
  OpText read{op.at("name").string(), op.string_or("doc", ""), {}, {}};
  const std::vector<JsonView> tensors = op.at("tensors").items();
  for (const JsonView& each : tensors) read.tensors.push_back(read_tensor(each, tensors));
  if (!op.has("attributes")) return read;
  for (const JsonView& each : op.at("attributes").items()) {
    read.attributes.push_back(read_attribute(each));
  }
  return read;
}

}  // namespace

std::string OpText::signature() const {
  std::string inputs;
  std::string outputs;
  for (const TensorText& tensor : tensors) {
    std::string& list = tensor.output ? outputs : inputs;
    list += (list.empty() ? "" : ", ") + (tensor.optional ? "[" + tensor.name + "]" : tensor.name);
  }
  return name + "(" + inputs + ") -> " + outputs;
}

std::vector<OpText> read_ops(const JsonView& schema) {
  std::vector<OpText> ops;
  if (!schema.has("ops")) return ops;
  for (const JsonView& op : schema.at("ops").items()) ops.push_back(read_op(op));
  return ops;
}

}  // namespace kiln
