// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/codegen/codegen.hpp"

#include <algorithm>
#include <functional>
#include <sstream>

#include "base/join.hpp"
#include "build-matrix/codegen/ops_header.hpp"
#include "build-matrix/schema/names.hpp"
#include "build-matrix/schema/spelling.hpp"
#include "kiln/op.hpp"

namespace kiln::build {
namespace {

constexpr std::string_view kLicenseLine = "// SPDX-License-Identifier: Apache-2.0\n";

/// Where `range` has the value, by its member.
template <class Range, class Value, class Member = std::identity>
std::string position(const Range& range, const Value& value, Member member = {}) {
  return std::to_string(std::ranges::find(range, value, member) - range.begin());
}

std::string quoted(const std::string& word) {
  return "\"" + word + "\"";
}

std::string arguments_struct(const OpSchema& op) {
  return camel_case(op.name) + "Arguments";
}

void write_arguments(std::ostream& out, const OpSchema& op) {
  // A backslash at the end would make a comment of the next line too.
  out << "// " << op.doc << (op.doc.ends_with('\\') ? "." : "") << "\n";
  out << "struct " << arguments_struct(op) << " : kiln::sdk::Placement {\n";
  for (const TensorSchema& tensor : op.tensors) {
    out << "  kiln::sdk::Tensor " << tensor.name << ";  // [" << shape_text(tensor.shape) << "]"
        << (tensor.layout == Layout::kRows ? ", rows" : "") << (tensor.optional ? ", optional" : "")
        << (tensor.output ? ", output" : "") << (tensor.inout ? ", inout" : "") << "\n";
  }
  for (const std::string& symbol : op.symbols) out << "  int64_t " << symbol << " = 0;\n";
  for (const AttributeSchema& attribute : op.attributes) {
    if (attribute.type == AttributeSchema::Type::kInt) {
      out << "  int64_t " << attribute.name << " = 0;\n";
    } else if (attribute.type == AttributeSchema::Type::kFloat) {
      out << "  double " << attribute.name << " = 0;\n";
    } else if (attribute.values.empty()) {
      out << "  const char* " << attribute.name << " = \"\";\n";
    } else {
      const std::string type = camel_case(attribute.name);
      out << "  enum class " << type << " : int32_t { " << join(attribute.values, ", ", enumerator)
          << " };\n  " << type << " " << attribute.name << " = " << type
          << "::" << enumerator(attribute.values[0]) << ";\n";
    }
  }
  out << "};\n";
  out << "size_t " << op.name << "_workspace_bytes(const " << arguments_struct(op)
      << "& arguments);\n";
  out << "int32_t " << op.name << "(const " << arguments_struct(op)
      << "& arguments, kiln_error* error);\n";
}

std::string tensor_rule(const OpSchema& op, const TensorSchema& tensor) {
  const std::string& same = tensor.same_dtype_as;
  return "    {" + quoted(tensor.name) + (tensor.optional ? ", true" : ", false") +
         ", sdk::Layout::" + (tensor.layout == Layout::kRows ? "kRows, " : "kCompact, ") +
         (same.empty() ? "-1" : position(op.tensors, same, &TensorSchema::name)) + ", " +
         std::to_string(tensor.dtypes.size()) + ", {" + join(tensor.dtypes, ", ", dtype_code) +
         "}, " + std::to_string(tensor.shape.size()) + ", {" +
         join(tensor.shape, ", ",
              [&op](const Extent& extent) {
                return extent.symbol.empty() ? "{-1, " + std::to_string(extent.value) + "}"
                                             : "{" + position(op.symbols, extent.symbol) + ", 0}";
              }) +
         "}},\n";
}

std::string values_table(const OpSchema& op, const AttributeSchema& attribute) {
  return enumerator(op.name) + camel_case(attribute.name) + "Values";
}

std::string attribute_rule(const OpSchema& op, const AttributeSchema& attribute) {
  const std::string begin = "    {\"" + attribute.name + "\", KILN_ATTRIBUTE_";
  if (const auto* word = std::get_if<std::string>(&attribute.fallback)) {
    if (attribute.values.empty()) return begin + "STRING, nullptr, 0, {.as_text = \"\"}},\n";
    return begin + "STRING, " + values_table(op, attribute) + ", " +
           std::to_string(attribute.values.size()) +
           ", {.as_int = " + position(attribute.values, *word) + "}},\n";
  }
  if (const auto* number = std::get_if<std::int64_t>(&attribute.fallback)) {
    return begin + "INT, nullptr, 0, {.as_int = " + std::to_string(*number) + "}},\n";
  }
  return begin +
         "FLOAT, nullptr, 0, {.as_float = " + float_literal(std::get<double>(attribute.fallback)) +
         "}},\n";
}

/// Of each tensor that says where it may stand, all else of the call.
std::vector<std::string> place_rules(const OpSchema& op) {
  std::vector<std::string> rules;
  for (std::size_t i = 0; i < op.tensors.size(); ++i) {
    const TensorSchema& tensor = op.tensors[i];
    if (!tensor.in_place) continue;
    for (std::size_t other = 0; other < op.tensors.size(); ++other) {
      if (other == i || (other > i && op.tensors[other].in_place)) continue;  // that one asks
      const bool may_be =
          std::ranges::find(*tensor.in_place, op.tensors[other].name) != tensor.in_place->end();
      rules.push_back("{" + std::to_string(i) + ", " + std::to_string(other) +
                      (may_be ? ", true}, " : ", false}, "));
    }
  }
  return rules;
}

/// "constexpr TYPE NAME[] = {ELEMENTS};"; nothing without elements, which no array lacks.
std::string array_text(const std::string& type, const std::string& name,
                       const std::string& elements) {
  return elements.empty() ? "" : "constexpr " + type + " " + name + "[] = {" + elements + "};\n";
}

/// The tables of one op, each but the tensors' left out where it would be empty.
std::string tables(const OpSchema& op) {
  const std::string prefix = enumerator(op.name);
  std::string rules;
  for (const TensorSchema& tensor : op.tensors) rules += tensor_rule(op, tensor);
  std::string text = array_text("sdk::TensorRule", prefix + "Tensors", "\n" + rules) +
                     array_text("const char*", prefix + "Symbols", join(op.symbols, ", ", quoted));
  rules.clear();
  for (const AttributeSchema& attribute : op.attributes) {
    text += array_text("const char*", values_table(op, attribute),
                       join(attribute.values, ", ", quoted));
    rules += attribute_rule(op, attribute);
  }
  if (!rules.empty()) text += array_text("sdk::AttributeRule", prefix + "Attributes", "\n" + rules);
  const std::vector<std::string> places = place_rules(op);
  text += array_text("sdk::PlaceRule", prefix + "Places", join(places, ""));
  const auto table = [&prefix](const char* name, std::size_t count) {
    return (count == 0 ? "nullptr" : prefix + name) + ", " + std::to_string(count);
  };
  return text + "constexpr sdk::OpSchema " + prefix + "Schema = {\n    \"" + op.name + "\", " +
         table("Tensors", op.tensors.size()) + ", " + table("Symbols", op.symbols.size()) + ", " +
         table("Attributes", op.attributes.size()) + ", " + table("Places", places.size()) + "};\n";
}

/// One function that checks a call and fills the op's argument struct, and the two of the C ABI.
void write_functions(std::ostream& out, const OpSchema& op, bool workspace_by_address) {
  const std::string prefix = enumerator(op.name);
  const std::string type = arguments_struct(op);
  out << "\nint32_t unpack(const kiln_call* call, sdk::CheckMode mode, " << type
      << "* arguments,\n               kiln_error* error) {\n";
  out << "  sdk::Tensor tensors[" << op.tensors.size() << "];\n";
  out << "  int64_t symbols[" << std::max<std::size_t>(op.symbols.size(), 1) << "] = {};\n";
  out << "  sdk::AttributeValue attributes[" << std::max<std::size_t>(op.attributes.size(), 1)
      << "] = {};\n";
  out << "  const int32_t status = sdk::check_call(" << prefix
      << "Schema, call, mode, {tensors, symbols, attributes},\n"
         "                                         arguments, error);\n"
         "  if (status != KILN_OK) return status;\n";
  for (std::size_t i = 0; i < op.tensors.size(); ++i) {
    out << "  arguments->" << op.tensors[i].name << " = tensors[" << i << "];\n";
  }
  for (std::size_t i = 0; i < op.symbols.size(); ++i) {
    out << "  arguments->" << op.symbols[i] << " = symbols[" << i << "];\n";
  }
  for (std::size_t i = 0; i < op.attributes.size(); ++i) {
    const AttributeSchema& attribute = op.attributes[i];
    out << "  arguments->" << attribute.name << " = ";
    if (attribute.type == AttributeSchema::Type::kString && attribute.values.empty()) {
      out << "attributes[" << i << "].as_text;\n";
    } else if (attribute.type == AttributeSchema::Type::kString) {
      out << "static_cast<" << type << "::" << camel_case(attribute.name) << ">(attributes[" << i
          << "].as_int);\n";
    } else if (attribute.type == AttributeSchema::Type::kInt) {
      out << "attributes[" << i << "].as_int;\n";
    } else {
      out << "attributes[" << i << "].as_float;\n";
    }
  }
  out << "  return KILN_OK;\n}\n\n";
  out << "int32_t workspace_" << op.name
      << "(const kiln_call* call, size_t* bytes, kiln_error* error) {\n  " << type
      << " arguments;\n"
         "  const int32_t status = unpack(call, sdk::CheckMode::kShapes, &arguments, error);\n";
  if (workspace_by_address) {
    // Written here, and not a function of the SDK, so that other packages' build ids stay.
    out << "  if (status != KILN_OK) return status;\n"
           "  const auto address_of = [call](int tensor) -> void* {\n"
           "    const DLTensor* const given = call->tensors[tensor];\n"
           "    if (given == nullptr || given->data == nullptr) return nullptr;\n"
           "    return static_cast<char*>(given->data) + given->byte_offset;\n  };\n";
    for (std::size_t i = 0; i < op.tensors.size(); ++i) {
      out << "  arguments." << op.tensors[i].name << ".data = address_of(" << i << ");\n";
    }
  }
  out << "  if (status == KILN_OK) *bytes = package::" << op.name
      << "_workspace_bytes(arguments);\n  return status;\n}\n\n";
  out << "int32_t run_" << op.name << "(const kiln_call* call, kiln_error* error) {\n  " << type
      << " arguments;\n"
         "  int32_t status = unpack(call, sdk::CheckMode::kRun, &arguments, error);\n"
         "  if (status != KILN_OK) return status;\n"
         "  status = sdk::check_workspace("
      << prefix << "Schema, arguments,\n                                package::" << op.name
      << "_workspace_bytes(arguments), error);\n"
         "  if (status != KILN_OK) return status;\n"
         "  return package::"
      << op.name << "(arguments, error);\n}\n";
}

/// Whether workspace_bytes() of this variant sees where the op's tensors lie.
bool sees_addresses(const Package& package, const GlueFacts& facts, const OpSchema& op) {
  const std::vector<std::string>& ops = package.cuda.workspace_by_address;
  return facts.backend == Backend::kCuda && std::ranges::find(ops, op.name) != ops.end();
}

/// Whether the GPU variants have a list of libraries, if only an empty one, and prepare() a part
/// that the package writes. A package without needs has neither, so its code is what it was before
/// there were any.
bool has_needs(const Package& package) {
  return !package.cuda.needs.empty();
}

void write_libraries(std::ostream& out, const GlueFacts& facts) {
  // An array needs an element; the count says that it does not matter.
  const std::string sonames =
      facts.libraries.empty() ? "nullptr" : join(facts.libraries, ", ", literal_of);
  out << "namespace {\nconstexpr const char* kSonames[] = {" << sonames << "};\n}  // namespace\n\n"
      << "const sdk::Libraries kLibraries = {kSonames, " << facts.libraries.size() << "};\n\n";
}

bool has_libraries(const Package& package, const GlueFacts& facts) {
  return facts.backend == Backend::kCuda && has_needs(package) && !facts.carries;
}

/// What kiln_package.prepare is: the SDK's function, or that and one more.
std::string write_prepare(std::ostream& out, const Package& package, const GlueFacts& facts) {
  if (!facts.carries && !has_libraries(package, facts)) return "sdk::prepare";
  out << "\nint32_t prepare(DLDevice device, kiln_error* error) {\n"
         "  const int32_t status = sdk::prepare(device, error);\n"
         "  return status == KILN_OK ? "
      << (facts.carries ? "sdk::load_carried(error)" : "prepare_libraries(device, error)")
      << " : status;\n}\n";
  return "prepare";
}

void write_package_table(std::ostream& out, const Package& package, const GlueFacts& facts,
                         const std::string& prepare) {
  out << "\nconstexpr kiln_op kOps[] = {\n";
  for (const OpSchema& op : package.ops) {
    out << "    {sizeof(kiln_op), 0, \"" << op.name << "\",\n    " << literal_of(op.text)
        << ",\n     workspace_" << op.name << ", run_" << op.name << ", "
        << hash_literal(signature_hash(signature_of(package, op))) << "},\n";
  }
  out << "};\n\nconstexpr kiln_package kPackage = {\n"
         "    sizeof(kiln_package), KILN_ABI_MAJOR, KILN_ABI_MINOR,\n    \""
      << package.name << "\", \"" << facts.build_id << "\", " << package.version << ", "
      << package.ops.size() << ", kOps, sizeof(kiln_op), "
      << (facts.backend == Backend::kCuda ? "kDLCUDA" : "kDLCPU") << ", " << prepare << "};\n";
}

void write_exports(std::ostream& out, const Package& package) {
  out << "\nextern \"C\" {\n\n#define KILN_EXPORT __attribute__((visibility(\"default\")))\n\n"
         "KILN_EXPORT const kiln_package* kiln_package_v1(void);\n"
         "const kiln_package* kiln_package_v1(void) { return &kiln::package::kPackage; }\n";
  for (std::size_t i = 0; i < package.ops.size(); ++i) {
    const OpSchema& op = package.ops[i];
    for (const bool run : {true, false}) {
      const std::string signature =
          "int __tvm_ffi_" + op.name + (run ? "" : "_workspace_bytes") +
          "(void* self, const kiln::sdk::TvmValue* arguments, int32_t count,\n"
          "    kiln::sdk::TvmValue* result)";
      out << "\nKILN_EXPORT " << signature << ";\n"
          << signature << " {\n  (void)self;\n"
          << "  return kiln::sdk::tvm_ffi_" << (run ? "run" : "workspace_bytes")
          << "(kiln::package::kOps[" << i << "], kiln::package::" << enumerator(op.name)
          << "Schema,\n      arguments, count, result);\n}\n";
    }
  }
  out << "\n}  // extern \"C\"\n";
}

}  // namespace

std::string generate_header(const Package& package) {
  std::ostringstream out;
  out << kLicenseLine << "// Generated from package.json of " << package.name << "@"
      << package.version << ".\n#pragma once\n\n#include <kiln/sdk/types.hpp>\n\n"
      << "namespace kiln::package {\n";
  for (const OpSchema& op : package.ops) {
    out << "\n";
    write_arguments(out, op);
  }
  if (has_needs(package)) {
    out << "\n// GPU variants only. What this one looks up at run time, of package.json's needs;\n"
           "// and the package's part of kiln_package.prepare, called after the device code is "
           "loaded.\n"
           "extern const kiln::sdk::Libraries kLibraries;\n"
           "int32_t prepare_libraries(DLDevice device, kiln_error* error);\n";
  }
  out << "\n}  // namespace kiln::package\n";
  return out.str();
}

std::string generate_glue(const Package& package, const GlueFacts& facts) {
  std::ostringstream out;
  out << kLicenseLine << "// Generated from package.json of " << package.name << "@"
      << package.version << ".\n#include \"package.gen.hpp\"\n\n#include <kiln/sdk/glue.hpp>\n"
      << (facts.carries ? "#include <kiln/sdk/carried.hpp>\n" : "") << "\n"
      << "namespace kiln::sdk {\n\nconst Identity kIdentity = {\"" << package.name << "\", "
      << package.version << ", " << (facts.backend == Backend::kCuda ? "kDLCUDA" : "kDLCPU")
      << "};\n\n}  // namespace kiln::sdk\n\nnamespace kiln::package {\n";
  if (has_libraries(package, facts)) write_libraries(out, facts);
  out << "namespace {\n";
  for (const OpSchema& op : package.ops) {
    out << "\n";
    out << tables(op);
    write_functions(out, op, sees_addresses(package, facts, op));
  }
  write_package_table(out, package, facts, write_prepare(out, package, facts));
  out << "\n}  // namespace\n}  // namespace kiln::package\n";
  write_exports(out, package);
  return out.str();
}

std::string generate_images(std::span<const DeviceImage> images) {
  std::ostringstream out;
  out << kLicenseLine
      << "// Generated: the device images of one variant.\n#include <kiln/sdk/images.hpp>\n\n"
         "// #embed is C23's; the pinned compiler has it in C++ as an extension.\n"
         "#pragma clang diagnostic ignored \"-Wc23-extensions\"\n\n"
         "namespace kiln::sdk {\nnamespace {\n";
  for (std::size_t i = 0; i < images.size(); ++i) {
    const DeviceImage& image = images[i];
    out << "\n// sha256:" << image.sha256 << "\n__attribute__((section(\".kiln.image." << image.stem
        << "\"), aligned(64))) constexpr unsigned char kImage" << i << "[] = {\n"
        << "#embed " << literal_of(image.path) << (image.ptx ? " suffix(, 0)" : "") << "\n};\n";
  }
  out << "\n}  // namespace\n\nconst Image kImages[] = {\n";
  for (std::size_t i = 0; i < images.size(); ++i) {
    out << "    {\"" << images[i].stem << "\", kImage" << i << ", sizeof(kImage" << i << ")},\n";
  }
  // An array needs an element; the count says that it does not matter.
  if (images.empty()) out << "    {nullptr, nullptr, 0},\n";
  out << "};\nconst int kImageCount = " << images.size() << ";\n\n}  // namespace kiln::sdk\n";
  return out.str();
}

std::string generate_exports(const Package& package) {
  std::string text = "{\n  global:\n    kiln_package_v1;\n";
  for (const OpSchema& op : package.ops) {
    text += "    __tvm_ffi_" + op.name + ";\n    __tvm_ffi_" + op.name + "_workspace_bytes;\n";
  }
  return text + "  local:\n    *;\n};\n";
}

std::vector<std::string> sdk_sources(Backend backend) {
  std::vector<std::string> sources = {"check.cpp", "fail.cpp", "places.cpp", "tvm_ffi.cpp"};
  if (backend == Backend::kCuda) {
    sources.insert(sources.end(), {"contexts.cpp", "device.cpp", "driver.cpp"});
  } else {
    sources.emplace_back("host.cpp");
  }
  return sources;
}

}  // namespace kiln::build
