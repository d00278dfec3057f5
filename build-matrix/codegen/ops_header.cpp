// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/codegen/ops_header.hpp"

#include <algorithm>
#include <sstream>

#include "base/join.hpp"
#include "build-matrix/schema/names.hpp"
#include "build-matrix/schema/spelling.hpp"
#include "documents/json.hpp"
#include "documents/ops.hpp"

namespace kiln::build {
namespace {

constexpr std::string_view kAttributes = "Attributes";

/// Of values "no" and "yes".
bool is_flag(const AttributeSchema& attribute) {
  return attribute.values == std::vector<std::string>{"no", "yes"};
}

bool is_choice(const AttributeSchema& attribute) {
  return !attribute.values.empty() && !is_flag(attribute);
}

bool is_text(const AttributeSchema& attribute) {
  return attribute.type == AttributeSchema::Type::kString && attribute.values.empty();
}

/// One struct for each list of attributes: it is named after the first op that has it.
std::string attributes_struct(const Package& package, const OpSchema& op) {
  const auto first = std::ranges::find_if(
      package.ops, [&](const OpSchema& other) { return other.attributes == op.attributes; });
  return camel_case(first->name).append(kAttributes);
}

std::string type_of(const AttributeSchema& attribute) {
  if (is_flag(attribute)) return "bool";
  if (is_choice(attribute)) return camel_case(attribute.name);
  if (is_text(attribute)) return "std::string";
  return attribute.type == AttributeSchema::Type::kInt ? "std::int64_t" : "double";
}

std::string default_of(const AttributeSchema& attribute) {
  if (const auto* number = std::get_if<std::int64_t>(&attribute.fallback)) {
    return " = " + std::to_string(*number);
  }
  if (const auto* real = std::get_if<double>(&attribute.fallback)) {
    return " = " + float_literal(*real);
  }
  if (is_text(attribute)) return " = {}";
  const auto& word = std::get<std::string>(attribute.fallback);
  if (is_flag(attribute)) return word == "yes" ? " = true" : " = false";
  return " = " + type_of(attribute) + "::" + enumerator(word);
}

/// An attribute of `a`, as the call takes it.
std::string passed(const AttributeSchema& attribute) {
  const std::string value = "a." + attribute.name;
  if (is_flag(attribute)) return value + " ? \"yes\" : \"no\"";
  if (is_choice(attribute)) return "word_of(" + value + ")";
  return is_text(attribute) ? value + ".c_str()" : value;
}

template <class Range, class TextOf>
std::vector<std::string> texts(const Range& range, TextOf text_of) {
  std::vector<std::string> all;
  all.reserve(range.size());
  for (const auto& each : range) all.push_back(text_of(each));
  return all;
}

constexpr std::string_view kArray = "            ";  // what follows "    return {"

/// The items, each with a comma behind it but the last, in lines of at most 100 columns
/// with the brackets around them.
std::string in_lines(const std::vector<std::string>& items, std::string_view indent) {
  constexpr std::size_t kColumns = 97;
  std::string text;
  std::size_t column = indent.size();
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string item = items[i] + (i + 1 < items.size() ? "," : "");
    if (i > 0 && column + 1 + item.size() > kColumns) {
      text.append("\n").append(indent);
      column = indent.size();
    } else if (i > 0) {
      text += ' ';
    }
    text += item;
    column += 1 + item.size();
  }
  return text;
}

/// A signature as literals, cut where a word ends, or within a word that fills a line.
std::string in_literals(std::string_view signature, std::string_view indent) {
  constexpr std::size_t kColumns = 80;  // literal_of cuts a longer one
  std::string text;
  while (signature.size() > kColumns) {
    const std::size_t space = signature.rfind(' ', kColumns - 1);
    const std::size_t end = space == std::string_view::npos ? kColumns : space + 1;
    text += literal_of(signature.substr(0, end)).append("\n").append(indent);
    signature.remove_prefix(end);
  }
  return text + literal_of(signature);
}

void write_choice(std::ostream& out, const AttributeSchema& attribute) {
  const std::string type = type_of(attribute);
  out << "  enum class " << type << " { " << join(attribute.values, ", ", enumerator) << " };\n"
      << "  friend constexpr const char* word_of(" << type << " value) {\n"
      << "    return kiln::word_at(value, {"
      << in_lines(texts(attribute.values, literal_of), kArray) << "});\n  }\n";
}

void write_attributes(std::ostream& out, const Package& package, const OpSchema& op) {
  const std::string type = attributes_struct(package, op);
  std::vector<std::string> ops;
  for (const OpSchema& other : package.ops) {
    if (other.attributes == op.attributes) ops.push_back(other.name);
  }
  out << comment("The attributes of " + join(ops) + ".", "///") << "struct " << type << " {\n";
  for (const AttributeSchema& each : op.attributes) {
    if (is_choice(each)) write_choice(out, each);
  }
  for (const AttributeSchema& each : op.attributes) {
    out << "  " << type_of(each) << " " << each.name << default_of(each) << ";\n";
  }
  out << "\n  friend std::array<kiln::Attribute, " << op.attributes.size()
      << "> attributes_of(const " << type << "& a) {\n    return {{"
      << in_lines(texts(op.attributes, passed), kArray) << "}};\n  }\n};\n\n";
}

/// "[M, D], bfloat16 or float16; output"
std::string words_of(const TensorSchema& tensor) {
  std::string text = "[" + shape_text(tensor.shape) + "], ";
  text += tensor.same_dtype_as.empty() ? join(tensor.dtypes, ", ") : "as " + tensor.same_dtype_as;
  if (tensor.layout == Layout::kRows) text += "; rows may lie apart";
  if (tensor.output) text += "; output";
  if (tensor.inout) text += "; read and written";
  return text + (tensor.optional ? "; or none" : "");
}

void write_member(std::ostream& out, const TensorSchema& tensor) {
  constexpr std::size_t kColumns = 100;
  const std::string member = tensor.optional ? "  kiln::Tensor " + tensor.name + " = {};"
                                             : "  kiln::RequiredTensor " + tensor.name + ";";
  const std::string words = words_of(tensor);
  if (member.size() + 7 + words.size() <= kColumns) {
    out << member << "  ///< " << words << "\n";
  } else {
    out << comment(words, "  ///") << member << "\n";
  }
}

void write_op(std::ostream& out, const Package& package, const OpSchema& op) {
  const std::string type = camel_case(op.name);
  out << comment(op.doc, "///") << "struct " << type << " {\n"
      << "  static constexpr kiln::OpSignature kSignature = {\n      kPackage, \"" << op.name
      << "\",\n      " << in_literals(signature_of(package, op), "      ") << "};\n\n";
  for (const TensorSchema& tensor : op.tensors) write_member(out, tensor);
  if (!op.attributes.empty()) {
    out << "  " << attributes_struct(package, op) << " attributes = {};\n";
  }
  const auto field = [](const TensorSchema& tensor) { return "&a." + tensor.name; };
  out << "\n  friend std::array<const kiln::Tensor*, " << op.tensors.size() << "> tensors_of(const "
      << type << "& a) {\n    return {" << in_lines(texts(op.tensors, field), kArray)
      << "};\n  }\n};\n";
}

}  // namespace

std::string signature_of(const Package& package, const OpSchema& op) {
  const std::string subject = package.name + " " + op.name;
  const Json json = parse_json(op.text, subject);
  return signature_text(package.name, JsonView(json, subject));
}

std::string ops_namespace(std::string_view package) {
  std::string name = underscored(std::string(package));
  if (name.front() >= '0' && name.front() <= '9') name.insert(0, 1, '_');
  if (name == "std" || name == "kiln" || why_not_identifier(name).ends_with("keeps for itself")) {
    name += '_';
  }
  return name;
}

std::filesystem::path ops_header_path(const Package& package) {
  return "include/kiln/ops/" + underscored(package.name) + ".hpp";
}

std::string generate_ops_header(const Package& package) {
  std::ostringstream out;
  const std::string name = ops_namespace(package.name);
  out << "// SPDX-License-Identifier: " << package.license << "\n"
      << "// clang-format off\n"
      << "// Made by kiln build from package.json of " << package.name << "@" << package.version
      << ": change that.\n//\n"
      << "//   kiln::get_kernel(\"" << package.name << "\", {.version = " << package.version
      << "})\n//       .op<kiln::ops::" << name << "::" << camel_case(package.ops.front().name)
      << ">().run({…}, workspace, stream);\n#pragma once\n\n"
      << "#include \"kiln/op.hpp\"\n\nnamespace kiln::ops::" << name << " {\n\n"
      << "inline constexpr std::string_view kPackage = \"" << package.name << "\";\n"
      << "inline constexpr int kVersion = " << package.version << ";\n";
  for (const OpSchema& op : package.ops) {
    out << "\n";
    const std::string attributes = attributes_struct(package, op);
    const bool is_first = attributes == camel_case(op.name).append(kAttributes);
    if (!op.attributes.empty() && is_first) write_attributes(out, package, op);
    write_op(out, package, op);
  }
  out << "\n}  // namespace kiln::ops::" << name << "\n";
  return out.str();
}

}  // namespace kiln::build
