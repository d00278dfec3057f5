// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/codegen/launch_code.hpp"

#include <algorithm>
#include <sstream>

#include "base/join.hpp"
#include "build-matrix/schema/names.hpp"
#include "build-matrix/schema/spelling.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

std::string arguments_of(const OpSchema& op) {
  return "const " + camel_case(op.name) + "Arguments& call";
}

/// Writes the code of one op.
class OpWriter {
 public:
  OpWriter(const Package& package, const OpSchema& op, const TritonPlan& plan,
           const DeviceCode& target, const std::map<std::string, TritonFacts>& facts,
           std::ostream& out)
      : section_(package.cuda.launch),
        op_(op),
        plan_(plan),
        target_(target),
        facts_(facts),
        out_(out) {}

  void write() {
    out_ << "namespace {\n";
    write_workspace();
    std::vector<std::string> names;
    for (std::size_t l = 0; l < section_.launches.size(); ++l) {
      if (section_.launches[l].op != op_.name) continue;
      names.push_back("launch_" + std::to_string(l));
      write_launch(section_.launches[l], plan_.instances[l], names.back());
    }
    std::string calls;
    const auto add = [&](const std::string& name, const char* step) {
      calls += "  if (const int32_t status = " + name + "(call, device, sdk::Step::" + step +
               ", error)) return status;\n";
    };
    if (names.size() > 1) {
      for (const std::string& name : names) add(name, "kAsk");
    }
    for (const std::string& name : names) add(name, "kLaunch");
    out_ << "\n}  // namespace\n\nsize_t " << op_.name << "_workspace_bytes(" << arguments_of(op_)
         << ") {\n  return workspace_of(call).bytes;\n}\n\nint32_t " << op_.name << "("
         << arguments_of(op_) << ", kiln_error* error) {\n"
         << "  sdk::OnDevice device;\n"
            "  if (const int32_t status = device.enter(call.device, error)) return status;\n"
         << calls << "  return KILN_OK;\n}\n";
  }

 private:
  std::string translated(const std::string& text, ExpressionType type,
                         const LaunchInstance* instance) const {
    return translate(text, type, expression_names(op_, instance)).text;
  }

  void write_workspace() {
    const std::string type = camel_case(op_.name) + "Workspace";
    std::string members;
    std::string parts;
    for (const WorkspacePart& part : section_.workspace) {
      if (part.op != op_.name) continue;
      members += "  size_t " + part.name + " = 0;\n";
      parts += "  parts." + part.name + " = layout.add(" +
               translated(part.count, ExpressionType::kInteger, nullptr) + ", " +
               element_bytes(part) + ");\n";
    }
    out_ << "\n// " << op_.name << ": where the parts of its workspace begin.\nstruct " << type
         << " {\n"
         << members << "  size_t bytes = 0;\n};\n\n"
         << type << " workspace_of([[maybe_unused]] " << arguments_of(op_) << ") {\n  " << type
         << " parts;\n  sdk::WorkspaceLayout layout;\n"
         << parts << "  parts.bytes = layout.bytes();\n  return parts;\n}\n";
  }

  /// Of a tensor that is left out: those of the largest dtype that it could have.
  std::string element_bytes(const WorkspacePart& part) const {
    const TensorSchema* owner = dtype_owner(op_, part.dtype);
    if (owner == nullptr) return "sdk::dtype_bytes(" + dtype_code(part.dtype) + ")";
    std::string there = "sdk::dtype_bytes(call." + owner->name + ".dtype)";
    if (!owner->optional) return there;
    int most = 0;
    for (const std::string& dtype : owner->dtypes) most = std::max(most, dtype_bytes(dtype));
    return "call." + owner->name + ".present ? " + there + " : " + std::to_string(most);
  }

  void write_launch(const Launch& launch, const std::vector<InstanceForms>& forms,
                    const std::string& name) {
    out_
        << "\nint32_t " << name << "([[maybe_unused]] " << arguments_of(op_)
        << ",\n    [[maybe_unused]] const sdk::OnDevice& device, [[maybe_unused]] sdk::Step step,\n"
           "    kiln_error* error) {\n";
    if (!launch.when.empty()) {
      out_ << "  if (!" << translated(launch.when, ExpressionType::kCondition, nullptr)
           << ") return KILN_OK;\n";
    }
    const std::string refusal = "return sdk::fail(error, KILN_UNSUPPORTED, \"%s\",\n      " +
                                literal_of(op_.name + ": " + launch.otherwise) + ");\n";
    for (const auto& [of, dtypes] : launch.dtypes) {
      out_ << "  if (" << (tensor(of).optional ? "call." + of + ".present && " : "")
           << "!sdk::is_one_of(call." << of << ".dtype, {" << join(dtypes, ", ", dtype_code)
           << "})) " << refusal;
    }
    if (!launch.expects.empty()) {
      out_ << "  if (!" << translated(launch.expects, ExpressionType::kCondition, nullptr) << ") "
           << refusal;
    }
    const std::vector<const LaunchInstance*> instances = instances_for(launch, target_);
    bool ends = false;
    for (std::size_t i = 0; i < instances.size() && !ends; ++i) {
      const LaunchInstance& instance = *instances[i];
      const std::string condition = condition_of(launch, instance);
      ends = condition.empty();
      out_ << "  ";
      if (!ends) out_ << "if (" << condition << ") ";
      out_ << "{  // " << instance.name << "\n";
      write_instance(launch, instance, forms[i]);
      out_ << "  }\n";
    }
    if (!ends) out_ << "  " << refusal;
    out_ << "}\n";
  }

  /// Where it is launched; empty: always.
  std::string condition_of(const Launch& launch, const LaunchInstance& instance) const {
    std::vector<std::string> all;
    if (!instance.when.empty()) {
      all.push_back(translated(instance.when, ExpressionType::kCondition, &instance));
    }
    if (instance.aligned != true) return join(all, " && ");
    for (const KernelArgument& argument : launch.arguments) {
      using Kind = KernelArgument::Kind;
      if (!argument.aligned || argument.kind == Kind::kWorkspace) continue;  // which is aligned
      const std::string value =
          argument.kind == Kind::kTensor
              ? "call." + argument.value + ".data"
              : translated(argument.value, ExpressionType::kInteger, &instance);
      all.push_back("sdk::is_aligned(" + value + ")");
    }
    return join(all, " && ");
  }

  void write_instance(const Launch& launch, const LaunchInstance& instance,
                      const InstanceForms& forms) {
    const TritonFacts& facts = facts_.at(launch.kernel);
    out_ << "    static constexpr uint16_t kForms[] = {"
         << join(forms.forms, ", ", [](std::size_t form) { return std::to_string(form); })
         << "};\n    sdk::" << (instance.descriptors.empty() ? "KernelCall" : "DescribedCall")
         << " kernel(\"" << op_.name << "\", \"" << launch.kernel << "\");\n";
    std::size_t written = 0;
    for (const std::string& parameter : facts.parameters) {
      const auto argument =
          std::ranges::find(launch.arguments, parameter, &KernelArgument::parameter);
      if (argument == launch.arguments.end()) continue;
      out_ << "    "
           << (instance.descriptors.contains(parameter)
                   ? descriptor_code(*argument, instance, facts.maps)
                   : argument_code(*argument, instance))
           << "\n";
      ++written;
    }
    if (written != launch.arguments.size()) {
      throw Error(ErrorCode::kBuild, "launches of " + op_.name + ": the compiler knows " +
                                         std::to_string(written) + " of the arguments of " +
                                         launch.kernel + ", and package.json has " +
                                         std::to_string(launch.arguments.size()));
    }
    for (const FormChoice& choice : forms.choices) {
      out_ << "    kernel.choose(" << choice_code(choice) << ", " << choice.count() << ");\n";
    }
    const int scratch = facts.forms.empty() ? 0 : facts.forms.begin()->second.scratch;
    for (int i = 0; i < scratch; ++i) {
      out_ << "    kernel.pointer(nullptr);  // scratch memory, of which it needs none\n";
    }
    out_ << "    const int form = kForms[kernel.form()];\n"
            "    return kernel.launch(step, device, form, kThreads[form]";
    for (std::size_t i = 0; i < 3; ++i) {
      out_ << ", "
           << (i < launch.grid.size()
                   ? translated(launch.grid[i], ExpressionType::kInteger, &instance)
                   : "1");
    }
    out_ << ", call.stream, error);\n";
  }

  /// "if (call.bias.present) ", of a tensor that may be left out.
  std::string if_present(const std::string& name) const {
    return tensor(name).optional ? "if (call." + name + ".present) " : "";
  }

  const TensorSchema& tensor(const std::string& name) const {
    return *std::ranges::find(op_.tensors, name, &TensorSchema::name);
  }

  std::string descriptor_code(const KernelArgument& argument, const LaunchInstance& instance,
                              bool maps) const {
    const DescriptorSpec& descriptor = instance.descriptors.at(argument.parameter);
    std::string matrix = "sdk::matrix_of(call." + argument.value;
    if (!descriptor.shape.empty()) {
      const auto extent = [&](const std::string& text) {
        return translated(text, ExpressionType::kInteger, &instance);
      };
      matrix += ", " + std::to_string(tensor(argument.value).shape.size()) + ", " +
                join(descriptor.shape, ", ", extent);
    }
    matrix += ")";
    const auto& [rows, columns] = descriptor.block;
    const std::string block = ", " + std::to_string(rows) + ", " + std::to_string(columns);
    return if_present(argument.value) + (maps ? "kernel.map(\"" : "kernel.described(\"") +
           argument.parameter + "\", " + matrix + (maps ? block : "") + ");";
  }

  std::string argument_code(const KernelArgument& argument, const LaunchInstance& instance) const {
    const std::string counts = argument.aligned ? ", true" : "";
    switch (argument.kind) {
      case KernelArgument::Kind::kTensor:
        return if_present(argument.value) + "kernel.pointer(call." + argument.value + ".data" +
               counts + ");";
      case KernelArgument::Kind::kWorkspace:
        return "kernel.pointer(static_cast<char*>(call.workspace) + workspace_of(call)." +
               argument.value + counts + ");";
      case KernelArgument::Kind::kInt32:
        return "kernel.int32(\"" + argument.parameter + "\", " +
               translated(argument.value, ExpressionType::kInteger, &instance) + counts + ");";
      case KernelArgument::Kind::kInt64:
        return "kernel.int64(" + translated(argument.value, ExpressionType::kInteger, &instance) +
               counts + ");";
      case KernelArgument::Kind::kFloat32:
        return "kernel.float32(call." + argument.value + ");";
      default:
        return "kernel.float64(call." + argument.value + ");";
    }
  }

  static std::string choice_code(const FormChoice& choice) {
    switch (choice.kind) {
      case FormChoice::Kind::kDtype:
        return "sdk::place_of(call." + choice.name + ".dtype, {" +
               join(choice.words, ", ", dtype_code) + "})";
      case FormChoice::Kind::kPresent:
        return "call." + choice.name + ".present ? 1 : 0";
      case FormChoice::Kind::kAttribute:
        return "static_cast<int>(call." + choice.name + ")";
      default:
        return "kernel.aligned() ? 1 : 0";
    }
  }

  const LaunchSection& section_;
  const OpSchema& op_;
  const TritonPlan& plan_;
  const DeviceCode& target_;
  const std::map<std::string, TritonFacts>& facts_;
  std::ostream& out_;
};

void write_kernels(const TritonPlan& plan, const std::map<std::string, TritonFacts>& facts,
                   const std::string& subject, std::ostream& out) {
  std::string threads;
  std::size_t count = 0;
  out << "namespace kiln::sdk {\n\nKernelList kernel_list() {\n"
         "  static const KernelSpec kernels[] = {\n";
  for (const TritonImage& image : plan.images) {
    for (const TritonForm& form : image.forms) {
      const auto of_image = facts.find(image.kernel);
      const bool known = of_image != facts.end() && of_image->second.forms.contains(form.function);
      if (!known) {
        throw Error(ErrorCode::kBuild, subject + ": the compiler says nothing of " + form.function);
      }
      const TritonFacts::Form& fact = of_image->second.forms.at(form.function);
      out << "      {\"" << image.kernel << "\", \"" << form.function << "\", " << fact.shared
          << "},\n";
      threads += (count++ == 0 ? "" : ", ") + std::to_string(fact.threads);
    }
  }
  out << "  };\n  return {kernels, " << count
      << "};\n}\n\n}  // namespace kiln::sdk\n\nnamespace kiln::package {\n\n"
         "// Of a block, by the kernel's position in the list.\nconstexpr uint32_t kThreads[] = {"
      << threads << "};\n";
}

}  // namespace

std::string generate_launches(const Package& package, const DeviceCode& target,
                              const std::map<std::string, TritonFacts>& facts) {
  const TritonPlan plan = plan_triton(package, target);
  std::ostringstream out;
  out << "// SPDX-License-Identifier: Apache-2.0\n// Generated from the launches in package.json "
         "of "
      << package.name << "@" << package.version
      << ".\n#include <kiln/sdk/launch.hpp>\n\n#include \"package.gen.hpp\"\n\n";
  write_kernels(plan, facts, "launches of " + package.name, out);
  for (const OpSchema& op : package.ops) {
    out << "\n";
    OpWriter(package, op, plan, target, facts, out).write();
  }
  out << "\n}  // namespace kiln::package\n";
  return out.str();
}

std::string launches_outline(const Package& package, const DeviceCode& target) {
  std::map<std::string, TritonFacts> facts;
  for (const TritonImage& image : plan_triton(package, target).images) {
    for (const TritonForm& form : image.forms) facts[image.kernel].forms[form.function] = {};
  }
  for (const Launch& launch : package.cuda.launch.launches) {
    for (const KernelArgument& argument : launch.arguments) {
      std::vector<std::string>& names = facts[launch.kernel].parameters;
      if (std::ranges::find(names, argument.parameter) == names.end()) {
        names.push_back(argument.parameter);
      }
    }
  }
  return generate_launches(package, target, facts);
}

}  // namespace kiln::build
