// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/schema/image_launch.hpp"

#include <algorithm>
#include <numeric>
#include <ostream>

#include "base/ascii.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "build-matrix/schema/fields.hpp"
#include "build-matrix/schema/names.hpp"
#include "build-matrix/schema/schema.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"

namespace kiln::build {
namespace {

constexpr int kMaxBlockThreads = 1024;
constexpr int kMaxSharedBytes = 1 << 20;
constexpr std::size_t kMaxParameters = 60;

const LaunchInstance kNoInstance{.name = "", .when = "", .constants = {}, .targets = {}};

/// A symbol: of extern "C", or mangled.
bool is_kernel_name(std::string_view name) {
  return !name.empty() && name.size() <= 1024 && is_word(name, "_$") && !is_digit(name.front());
}

std::map<std::string, std::vector<std::string>> parse_kernel_dtypes(const JsonView& value,
                                                                    const OpSchema& op) {
  if (!value.json().is_object()) value.fail("is not an object");
  std::map<std::string, std::vector<std::string>> dtypes;
  for (const auto& [name, item] : value.members()) {
    const TensorSchema* owner = dtype_owner(op, name);
    if (owner == nullptr) item.fail(quote(name) + " is not a tensor of " + op.name);
    const auto is_one = [owner](const std::string& word) {
      return std::ranges::find(owner->dtypes, word) != owner->dtypes.end();
    };
    dtypes[owner->name] = read_list(item, [&](const JsonView& each) {
      return read_word(each, is_one, "is not a dtype of " + owner->name);
    });
  }
  return dtypes;
}

ImageLaunch parse_image_launch(const JsonView& value, const std::vector<OpSchema>& ops) {
  check_keys(value, {"op", "kernel", "grid", "threads", "arguments"}, {"when", "dtypes", "shared"});
  const OpSchema& op = read_op(value, ops);
  ImageLaunch launch{.op = op.name};
  launch.kernel = read_word(value.at("kernel"), is_kernel_name, "is not a kernel's name");
  launch.grid = read_grid(value.at("grid"), op, {kNoInstance});
  launch.threads = static_cast<std::uint32_t>(read_count(value.at("threads"), 1, kMaxBlockThreads));
  if (value.has("shared")) {
    launch.shared = static_cast<std::uint32_t>(read_count(value.at("shared"), 0, kMaxSharedBytes));
  }
  if (value.has("when")) {
    launch.when = read_expression(value.at("when"), ExpressionType::kCondition, op, &kNoInstance);
  }
  if (value.has("dtypes")) launch.dtypes = parse_kernel_dtypes(value.at("dtypes"), op);
  for (const JsonView& item : value.at("arguments").items()) {
    KernelArgument argument =
        read_kernel_argument(item, op, [](std::string_view) { return false; });
    argument.parameter = std::to_string(launch.arguments.size());
    if (argument.kind == KernelArgument::Kind::kInt32 ||
        argument.kind == KernelArgument::Kind::kInt64) {
      read_expression(item.json().is_object() ? item.at("value") : item, ExpressionType::kInteger,
                      op, &kNoInstance);
    }
    launch.arguments.push_back(std::move(argument));
  }
  if (launch.arguments.size() > kMaxParameters) {
    value.at("arguments").fail("has more than 60 members");
  }
  return launch;
}

std::string image_expression(const std::string& text, ExpressionType type, const OpSchema& op) {
  return translate(text, type, expression_names(op, &kNoInstance)).text;
}

/// What has to hold for the kernel to be launched.
std::string condition_of(const ImageLaunch& launch, const OpSchema& op) {
  std::string text =
      launch.when.empty() ? "true" : image_expression(launch.when, ExpressionType::kCondition, op);
  for (const auto& [tensor, dtypes] : launch.dtypes) {
    const std::string& name = tensor;
    const auto is_one = [&name](const std::string& dtype) {
      return "call." + name + ".dtype == " + dtype_code(dtype);
    };
    const bool optional = dtype_owner(op, name)->optional;
    text += std::string(" && (") + (optional ? "!call." + name + ".present || " : "") +
            join(dtypes, " || ", is_one) + ")";
  }
  return text;
}

std::string argument_code(const KernelArgument& argument, const OpSchema& op) {
  switch (argument.kind) {
    case KernelArgument::Kind::kTensor:
      return "kernel.pointer(call." + argument.value + ".data);";
    case KernelArgument::Kind::kInt32:
      return "kernel.int32(\"argument " + argument.parameter + "\", " +
             image_expression(argument.value, ExpressionType::kInteger, op) + ");";
    case KernelArgument::Kind::kInt64:
      return "kernel.int64(" + image_expression(argument.value, ExpressionType::kInteger, op) +
             ");";
    case KernelArgument::Kind::kFloat32:
      return "kernel.float32(call." + argument.value + ");";
    default:
      return "kernel.float64(call." + argument.value + ");";
  }
}

void write_image_launch(std::ostream& out, const OpSchema& op, const ImageLaunch& launch,
                        std::size_t number) {
  out << "    if (" << condition_of(launch, op) << ") {\n      sdk::KernelCall kernel(\"" << op.name
      << "\", \"" << launch.kernel << "\");\n";
  for (const KernelArgument& argument : launch.arguments) {
    out << "      " << argument_code(argument, op) << "\n";
  }
  out << "      const int32_t status = kernel.launch(step, device, " << number << ", "
      << launch.threads;
  for (std::size_t i = 0; i < 3; ++i) {
    out << ", "
        << (i < launch.grid.size() ? image_expression(launch.grid[i], ExpressionType::kInteger, op)
                                   : "1");
  }
  out << ", call.stream, error);\n"
         "      if (status != KILN_OK) return status;\n"
         "      found = true;\n    }\n";
}

}  // namespace

std::vector<ImageLaunch> parse_image_launches(const JsonView& value,
                                              const std::vector<OpSchema>& ops) {
  std::vector<ImageLaunch> launches;
  for (const JsonView& item : non_empty(value)) launches.push_back(parse_image_launch(item, ops));
  if (launches.size() > kMaxKernels) {
    value.fail("has " + std::to_string(launches.size()) + " launches; at most " +
               std::to_string(kMaxKernels) + " can be loaded");
  }
  for (const OpSchema& op : ops) {
    if (std::ranges::find(launches, op.name, &ImageLaunch::op) == launches.end()) {
      value.fail("has none of the op " + op.name);
    }
    OpUses uses;
    for (const ImageLaunch& launch : launches) {
      if (launch.op != op.name) continue;
      uses.conditions.push_back(launch.when);
      uses.arguments.insert(uses.arguments.end(), launch.arguments.begin(), launch.arguments.end());
      uses.texts.insert(uses.texts.end(), launch.grid.begin(), launch.grid.end());
      for (const auto& [tensor, dtypes] : launch.dtypes) uses.texts.push_back(tensor);
    }
    check_used(value, op, uses);
  }
  return launches;
}

std::vector<std::uint64_t> argument_bytes(const ImageLaunch& launch) {
  std::vector<std::uint64_t> bytes;
  for (const KernelArgument& argument : launch.arguments) {
    const bool is_short = argument.kind == KernelArgument::Kind::kInt32 ||
                          argument.kind == KernelArgument::Kind::kFloat32;
    bytes.push_back(is_short ? 4 : 8);
  }
  return bytes;
}

std::vector<std::size_t> kernel_order(const std::vector<ImageLaunch>& launches) {
  std::vector<std::size_t> order(launches.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return launches[i].shared; });
  return order;
}

void write_image_op(std::ostream& out, const OpSchema& op,
                    const std::vector<ImageLaunch>& launches) {
  const std::string type = camel_case(op.name) + "Arguments";
  out << "\nsize_t " << op.name << "_workspace_bytes(const " << type << "&) { return 0; }\n\n"
      << "int32_t " << op.name << "(const " << type << "& call, kiln_error* error) {\n"
      << "  sdk::OnDevice device;\n"
         "  if (const int32_t status = device.enter(call.device, error)) return status;\n"
         "  bool found = false;\n"
         "  constexpr sdk::Step kSteps[] = {sdk::Step::kAsk, sdk::Step::kLaunch};\n"
         "  for (const sdk::Step step : kSteps) {\n";
  const std::vector<std::size_t> order = kernel_order(launches);
  for (std::size_t i = 0; i < launches.size(); ++i) {
    if (launches[i].op != op.name) continue;
    const auto place = std::ranges::find(order, i) - order.begin();
    write_image_launch(out, op, launches[i], static_cast<std::size_t>(place));
  }
  out << "  }\n  if (found) return KILN_OK;\n"
         "  return sdk::fail(error, KILN_UNSUPPORTED, \""
      << op.name << ": none of the kernels is for these dtypes, extents and attributes\");\n}\n";
}

}  // namespace kiln::build
