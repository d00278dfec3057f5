// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/codegen/calls.hpp"

#include <algorithm>
#include <sstream>

#include "base/join.hpp"
#include "build-matrix/schema/names.hpp"
#include "build-matrix/schema/spelling.hpp"

namespace kiln::build {
namespace {

void write_files(std::ostream& out, std::size_t count, bool ptx) {
  out << "// #embed is C23's; the pinned compiler has it in C++ as an extension.\n"
         "#pragma clang diagnostic ignored \"-Wc23-extensions\"\n\n"
         "namespace kiln::sdk {\nnamespace {\n";
  for (std::size_t i = 0; i < count; ++i) {
    out << "\n__attribute__((section(\"" << carried_section(i)
        << "\"), aligned(64))) constexpr unsigned char kFile" << i << "[] = {\n#embed \""
        << carried_name(i) << "\"" << (ptx ? " suffix(, 0)" : "") << "\n};\n";
  }
  out << "\n}  // namespace\n\n";
}

void write_carried(std::ostream& out, const std::vector<std::string>& sonames) {
  out << "const Carried kCarried[] = {\n";
  for (std::size_t i = 0; i < sonames.size(); ++i) {
    out << "    {" << literal_of(sonames[i]) << ", kFile" << i << ", sizeof(kFile" << i << ")},\n";
  }
  out << "};\nconst int kCarriedCount = " << sonames.size() << ";\n";
}

/// What the launcher loads: the image, or nothing of a library, which loads its own.
void write_image(std::ostream& out, const Binary& binary) {
  const std::size_t count = binary.launches.size();
  if (count == 0) {
    out << "\nconst Image kImages[] = {{nullptr, nullptr, 0}};\nconst int kImageCount = 0;\n"
           "KernelList kernel_list() { return {nullptr, 0}; }\n";
    return;
  }
  out << "const Image kImages[] = {{\"image\", kFile0, sizeof(kFile0)}};\n"
         "const int kImageCount = 1;\n\nKernelList kernel_list() {\n"
         "  static const KernelSpec kernels[] = {\n";
  for (const std::size_t i : kernel_order(binary.launches)) {
    const ImageLaunch& launch = binary.launches[i];
    out << "      {\"image\", " << literal_of(launch.kernel) << ", " << launch.shared << "},\n";
  }
  out << "  };\n  return {kernels, " << count << "};\n}\n";
}

/// The words of an attribute that has some, by their enumerators.
std::string words_name(const OpSchema& op, const AttributeSchema& attribute) {
  return enumerator(op.name) + camel_case(attribute.name) + "Words";
}

void write_call(std::ostream& out, const OpSchema& op, const FunctionCall& call, bool on_gpu) {
  const std::string type = camel_case(op.name) + "Arguments";
  out << "\nsize_t " << op.name << "_workspace_bytes(const " << type << "&) { return 0; }\n";
  for (const AttributeSchema& attribute : op.attributes) {
    if (attribute.values.empty()) continue;
    out << "constexpr const char* " << words_name(op, attribute) << "[] = {"
        << join(attribute.values, ", ", literal_of) << "};\n";
  }
  out << "\nint32_t " << op.name << "(const " << type << "& call, kiln_error* error) {\n"
      << "  static constinit sdk::TvmFunction function = {\"" << op.name << "\", \"__tvm_ffi_"
      << call.name << "\"};\n";
  if (on_gpu) {
    out << "  sdk::OnDevice device;\n"
           "  if (const int32_t status = device.enter(call.device, error)) return status;\n";
  }
  out << "  sdk::TvmArguments arguments(call.device);\n";
  for (const std::string& name : call.arguments) {
    const auto attribute = std::ranges::find(op.attributes, name, &AttributeSchema::name);
    const auto tensor = std::ranges::find(op.tensors, name, &TensorSchema::name);
    if (tensor != op.tensors.end()) {
      out << "  arguments.add(call." << name << ", " << tensor->shape.size() << ");\n";
    } else if (!attribute->values.empty()) {
      out << "  arguments.add(" << words_name(op, *attribute) << "[static_cast<int>(call." << name
          << ")]);\n";
    } else {
      out << "  arguments.add(call." << name << ");\n";
    }
  }
  out << "  return sdk::call_tvm_ffi(function, arguments, call, error);\n}\n";
}

}  // namespace

std::string carried_section(std::size_t position) {
  return ".kiln.carried." + std::to_string(position);
}

std::string carried_name(std::size_t position) {
  return "carried-" + std::to_string(position) + ".so";
}

std::string generate_calls(const Package& package, const Binary& binary,
                           const std::vector<std::string>& sonames, bool ptx) {
  std::ostringstream out;
  out << "// SPDX-License-Identifier: Apache-2.0\n// Generated from package.json of "
      << package.name << "@" << package.version << ".\n#include \"package.gen.hpp\"\n\n";
  const bool is_image = binary.abi == Binary::Abi::kCuda;
  const bool on_gpu = binary.toolkit.has_value();
  if (!is_image) out << "#include <kiln/sdk/carried.hpp>\n";
  if (on_gpu) out << "#include <kiln/sdk/images.hpp>\n#include <kiln/sdk/launch.hpp>\n";
  out << "\n";
  write_files(out, sonames.size(), ptx);
  if (!is_image) write_carried(out, sonames);
  if (on_gpu) write_image(out, binary);
  out << "\n}  // namespace kiln::sdk\n\nnamespace kiln::package {\n";
  for (std::size_t i = 0; i < package.ops.size(); ++i) {
    if (is_image) {
      write_image_op(out, package.ops[i], binary.launches);
    } else {
      write_call(out, package.ops[i], binary.functions[i], on_gpu);
    }
  }
  out << "\n}  // namespace kiln::package\n";
  return out.str();
}

}  // namespace kiln::build
