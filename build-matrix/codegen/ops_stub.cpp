// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/codegen/ops_stub.hpp"

#include <sstream>
#include <string_view>
#include <vector>

#include "base/join.hpp"
#include "build-matrix/schema/names.hpp"
#include "build-matrix/schema/spelling.hpp"

namespace kiln::build {
namespace {

/// A word of Python that a schema may have as a name, `import` is not a word of C++; and `self`,
/// which is the op. The module kiln takes both spellings.
std::string parameter_name(const std::string& name) {
  constexpr std::string_view kWords =
      " as async await def del elif except finally from global import in is lambda nonlocal pass "
      "raise self with yield ";
  return kWords.find(" " + name + " ") == std::string_view::npos ? name : name + "_";
}

std::string annotation(const TensorSchema& tensor) {
  if (tensor.output) return tensor.optional ? "Union[Array, bool, None]" : "Optional[Array]";
  return tensor.optional ? "Optional[Array]" : "Array";
}

/// A parameter; one that must be given after one that need not has a default, too.
std::string parameter(const TensorSchema& tensor, bool after_default) {
  const std::string text = parameter_name(tensor.name) + ": " + annotation(tensor);
  if (tensor.optional || tensor.output) return text + " = None";
  return after_default ? text + " = ..." : text;
}

std::string annotation(const AttributeSchema& attribute) {
  if (attribute.type == AttributeSchema::Type::kInt) return "int";
  if (attribute.type == AttributeSchema::Type::kFloat) return "float";
  if (attribute.values.empty()) return "str";
  return "Literal[" + join(attribute.values, ", ", literal_of) + "]";
}

std::string default_in_python(const AttributeSchema& attribute) {
  if (const auto* number = std::get_if<std::int64_t>(&attribute.fallback)) {
    return std::to_string(*number);
  }
  if (const auto* real = std::get_if<double>(&attribute.fallback)) return float_literal(*real);
  return literal_of(std::get<std::string>(attribute.fallback));
}

std::vector<const TensorSchema*> outputs_of(const OpSchema& op) {
  std::vector<const TensorSchema*> outputs;
  for (const TensorSchema& tensor : op.tensors) {
    if (tensor.output) outputs.push_back(&tensor);
  }
  return outputs;
}

void write_op(std::ostream& out, const OpSchema& op) {
  const std::string type = camel_case(op.name);
  const std::vector<const TensorSchema*> outputs = outputs_of(op);
  std::string result = outputs.empty() ? "None" : "Array";
  if (outputs.size() > 1) {
    result = type + "Result";
    out << "class " << result << "(NamedTuple):\n";
    for (const TensorSchema* output : outputs) {
      out << "    " << parameter_name(output->name) << ": "
          << (output->optional ? "Optional[Array]" : "Array") << "\n";
    }
    out << "\n";
  }
  out << "class " << type << "(Protocol):\n"
      << comment(op.doc, "    #") << "    def __call__(\n"
      << "        self,\n";
  bool after_default = false;
  for (const TensorSchema& tensor : op.tensors) {
    out << "        " << parameter(tensor, after_default) << ",\n";
    after_default = after_default || tensor.optional || tensor.output;
  }
  out << "        *,\n";
  for (const AttributeSchema& each : op.attributes) {
    out << "        " << parameter_name(each.name) << ": " << annotation(each) << " = "
        << default_in_python(each) << ",\n";
  }
  out << "        stream: Any = None,\n        workspace: Any = None,\n    ) -> " << result
      << ": ...\n\n";
}

}  // namespace

std::filesystem::path ops_stub_path(const Package& package) {
  return "python/" + underscored(package.name) + "_ops.pyi";
}

std::string generate_ops_stub(const Package& package) {
  std::ostringstream out;
  const std::string kernel = camel_case(package.name) + "Kernel";
  out << "# SPDX-License-Identifier: " << package.license << "\n"
      << "# Made by kiln build from package.json of " << package.name << "@" << package.version
      << ": change that.\n#\n#   kernel = cast(\"" << kernel << "\", kiln.get_kernel(\""
      << package.name << "\", " << package.version << "))\n"
      << "from typing import Any, Literal, NamedTuple, Optional, Protocol, Union\n\n"
      << "Array = Any  # of torch, of numpy, or what has __dlpack__\n\n";
  for (const OpSchema& op : package.ops) write_op(out, op);
  out << "class " << kernel << "(Protocol):\n    name: str\n    version: int\n    variant: str\n"
      << "    device: str\n";
  for (const OpSchema& op : package.ops) {
    out << "    " << parameter_name(op.name) << ": " << camel_case(op.name) << "\n";
  }
  return out.str();
}

}  // namespace kiln::build
