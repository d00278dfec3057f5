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

bool has_flag(const JsonView& object, const char* key) {
  return object.has(key) && object.at(key).boolean();
}

TensorText read_tensor(const JsonView& tensor, const std::vector<JsonView>& tensors) {
  return {.name = tensor.at("name").string(),
          .dtype = dtype_of(tensor, tensors),
          .shape = "[" + join(tensor.at("shape").items(), ", ", extent_of) + "]",
          .layout = tensor.string_or("layout", ""),
          .output = has_flag(tensor, "output"),
          .inout = has_flag(tensor, "inout"),
          .optional = has_flag(tensor, "optional")};
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

OpLayout::Tensor read_tensor_layout(const JsonView& tensor, const OpLayout& before) {
  OpLayout::Tensor read{.name = tensor.at("name").string(),
                        .output = has_flag(tensor, "output"),
                        .inout = has_flag(tensor, "inout"),
                        .optional = has_flag(tensor, "optional")};
  for (const JsonView& extent : tensor.at("shape").items()) read.shape.push_back(extent_of(extent));
  const JsonView dtype = tensor.at("dtype");
  if (!dtype.json().is_string()) {
    read.dtypes = dtype.strings();
    return read;
  }
  const auto other = std::ranges::find(before.tensors, dtype.string(), &OpLayout::Tensor::name);
  read.dtypes = other != before.tensors.end() ? other->dtypes : std::vector{dtype.string()};
  return read;
}

OpLayout::Attribute read_attribute_layout(const JsonView& attribute) {
  OpLayout::Attribute read{.name = attribute.at("name").string(), .values = {}, .fallback = {}};
  if (attribute.has("values")) read.values = attribute.at("values").strings();
  const JsonView fallback = attribute.at("default");
  const std::string type = attribute.at("type").string();
  if (type == "string") {
    read.fallback = fallback.string();
  } else if (!fallback.json().is_number()) {
    fallback.fail("is no number");
  } else if (type == "int") {
    read.fallback = fallback.json().get<std::int64_t>();
  } else {
    read.fallback = fallback.json().get<double>();
  }
  return read;
}

std::string tensor_signature(const JsonView& tensor) {
  std::string text = tensor.at("name").string();
  if (has_flag(tensor, "optional")) text += '?';
  if (has_flag(tensor, "output")) text += '!';
  if (has_flag(tensor, "inout")) text += '~';
  const JsonView dtype = tensor.at("dtype");
  text += ": " +
          (dtype.json().is_string() ? dtype.string() : join(dtype.items(), "|", &JsonView::string));
  text += " [" + join(tensor.at("shape").items(), ",", extent_of) + "]";
  if (const std::string layout = tensor.string_or("layout", ""); !layout.empty()) {
    text += " " + layout;
  }
  return text;
}

std::string attribute_signature(const JsonView& attribute) {
  std::string text = attribute.at("name").string() + ": " + attribute.at("type").string();
  if (attribute.has("values")) {
    text += " " + join(attribute.at("values").items(), "|", &JsonView::string);
  }
  return text + " = " + attribute.at("default").json().dump();
}

}  // namespace

OpLayout read_layout(const JsonView& op) {
  OpLayout layout{.name = op.at("name").string(), .tensors = {}, .attributes = {}};
  for (const JsonView& each : op.at("tensors").items()) {
    layout.tensors.push_back(read_tensor_layout(each, layout));
  }
  if (!op.has("attributes")) return layout;
  for (const JsonView& each : op.at("attributes").items()) {
    layout.attributes.push_back(read_attribute_layout(each));
  }
  return layout;
}

const std::string& dtype_of(const OpLayout::Tensor& tensor, const std::string& word) {
  const bool may = std::ranges::find(tensor.dtypes, word) != tensor.dtypes.end();
  return may || tensor.dtypes.empty() ? word : tensor.dtypes.front();
}

std::string signature_text(std::string_view package, const JsonView& op) {
  std::string text = std::string(package) + "." + op.at("name").string() + "(" +
                     join(op.at("tensors").items(), ", ", tensor_signature);
  if (op.has("attributes") && !op.at("attributes").items().empty()) {
    text += "; " + join(op.at("attributes").items(), ", ", attribute_signature);
  }
  return text + ")";
}

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
