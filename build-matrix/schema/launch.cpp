// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/schema/launch.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <utility>

#include "base/ascii.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "build-matrix/schema/fields.hpp"
#include "build-matrix/schema/names.hpp"
#include "build-matrix/schema/schema.hpp"
#include "build-matrix/schema/spelling.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"

namespace kiln::build {
namespace {

constexpr std::size_t kMaxArguments = 60;
constexpr int kMaxWarps = 32;
constexpr int kMaxStages = 16;
constexpr int kMaxRegisters = 255;
constexpr int kMaxBlock = 1 << 20;  // Triton's largest

bool is_python_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && is_word(name, "_") && !is_digit(name.front());
}

template <class List>
auto find_named(const List& list, std::string_view name) {
  const auto found = std::ranges::find(list, name, [](const auto& each) { return each.name; });
  return found == list.end() ? nullptr : &*found;
}

std::string read_python_name(const JsonView& value) {
  return read_word(value, is_python_name, "is not a name of Python's");
}

KernelArgument::Kind read_type(const JsonView& value, KernelArgument::Kind plain) {
  using Kind = KernelArgument::Kind;
  const std::string type = value.string();
  if (plain == Kind::kInt32 && type == "int32") return Kind::kInt32;
  if (plain == Kind::kInt32 && type == "int64") return Kind::kInt64;
  if (plain == Kind::kFloat32 && type == "float32") return Kind::kFloat32;
  if (plain == Kind::kFloat32 && type == "float64") return Kind::kFloat64;
  value.fail(quote(type) + " is not a type of this argument; expected " +
             (plain == Kind::kInt32     ? "int32 or int64"
              : plain == Kind::kFloat32 ? "float32 or float64"
                                        : "none: a pointer has that of its tensor"));
}

/// Of an expression that is one number, if 64 bits hold it.
std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, failed] = std::from_chars(text.begin(), text.end(), number);
  return failed == std::errc() && end == text.end() ? std::optional(number) : std::nullopt;
}

/// A number stands for itself.
std::string read_expression_text(const JsonView& value) {
  if (value.json().is_number_float()) {
    value.fail("is a float, which is an attribute of the op, or one of \"constants\"");
  }
  return value.json().is_number() ? value.json().dump() : value.string();
}

/// Reads one launch; knows its op.
class LaunchReader {
 public:
  LaunchReader(const OpSchema& op, const LaunchSection& section, std::string_view package)
      : op_(op), section_(section), package_(package) {}

  Launch read(const JsonView& value) {
    check_keys(value, {"op", "source", "kernel", "grid", "arguments", "instances"},
               {"constants", "descriptors", "aligned", "dtypes", "when", "expects", "otherwise"});
    Launch launch{.op = op_.name};
    launch.source = read_source(value.at("source"), ".py", package_);
    launch.kernel = read_python_name(value.at("kernel"));
    read_arguments(value, launch);
    if (value.has("dtypes")) read_dtypes(value.at("dtypes"), launch);
    std::map<std::string, KernelConstant> constants;
    if (value.has("constants")) read_constants(value.at("constants"), launch, constants);
    for (const JsonView& item : non_empty(value.at("instances"))) {
      launch.instances.push_back(read_instance(item, launch, constants));
      LaunchInstance& instance = launch.instances.back();
      for (const JsonView& of : {value, item}) {
        if (of.has("descriptors")) read_descriptors(of.at("descriptors"), launch, instance);
      }
      check_count(value.at("arguments"), launch, instance);
    }
    if (value.has("expects")) {
      launch.expects = read_expression(value.at("expects"), ExpressionType::kCondition, op_);
    }
    if (value.has("otherwise")) launch.otherwise = read_line(value.at("otherwise"));
    check_last(value, launch);
    check_reached(value, launch);
    if (value.has("when")) {
      launch.when = read_expression(value.at("when"), ExpressionType::kCondition, op_);
    }
    launch.grid = read_grid(value.at("grid"), op_, launch.instances);
    check_arguments(value.at("arguments"), launch);
    return launch;
  }

  WorkspacePart read_part(const JsonView& value) const {
    check_keys(value, {"op", "name", "dtype", "count"});
    WorkspacePart part{.op = op_.name, .name = value.at("name").string()};
    if (const std::string wrong = why_not_identifier(part.name); !wrong.empty()) {
      value.at("name").fail(quote(part.name) + " " + wrong);
    }
    const bool taken = part.name == "bytes" ||  // of all parts together
                       find_named(op_.tensors, part.name) != nullptr ||
                       find_named(op_.attributes, part.name) != nullptr ||
                       part_of_workspace(part.name) != nullptr;
    if (taken) value.at("name").fail("the name " + part.name + " is already taken");
    part.dtype = value.at("dtype").string();
    if (!is_dtype(part.dtype)) check_tensor(value.at("dtype"), "is neither a dtype nor a tensor");
    part.count = read_expression(value.at("count"), ExpressionType::kInteger, op_);
    return part;
  }

 private:
  const WorkspacePart* part_of_workspace(std::string_view name) const {
    const auto found = std::ranges::find_if(section_.workspace, [&](const WorkspacePart& part) {
      return part.op == op_.name && part.name == name;
    });
    return found == section_.workspace.end() ? nullptr : &*found;
  }

  const TensorSchema& check_tensor(const JsonView& value, const std::string& wrong) const {
    const TensorSchema* tensor = find_named(op_.tensors, value.string());
    if (tensor == nullptr) value.fail(quote(value.string()) + " " + wrong + " of " + op_.name);
    return *tensor;
  }

  void read_arguments(const JsonView& value, Launch& launch) const {
    for (const auto& [parameter, item] : value.at("arguments").members()) {
      if (!is_python_name(parameter)) item.fail(quote(parameter) + " is not a name of Python's");
      launch.arguments.push_back(read_kernel_argument(
          item, op_, [this](std::string_view name) { return part_of_workspace(name) != nullptr; }));
      launch.arguments.back().parameter = parameter;
    }
    if (launch.arguments.empty()) value.at("arguments").fail("is empty");
    if (!value.has("aligned")) return;
    for (const JsonView& item : non_empty(value.at("aligned"))) {
      const std::string name = item.string();
      const auto found = std::ranges::find(launch.arguments, name, &KernelArgument::parameter);
      if (found == launch.arguments.end()) {
        const auto parameter = [](const KernelArgument& each) { return each.parameter; };
        item.fail(quote(name) +
                  " is not one of the arguments: " + join(launch.arguments, ", ", parameter));
      }
      if (found->aligned) item.fail(name + " is listed twice");
      using Kind = KernelArgument::Kind;
      if (found->kind == Kind::kFloat32 || found->kind == Kind::kFloat64) {
        item.fail(name + " is neither an integer nor a pointer");
      }
      found->aligned = true;
    }
  }

  /// Once the instances' constants are known, which expressions may name.
  void check_arguments(const JsonView& value, const Launch& launch) const {
    for (const KernelArgument& argument : launch.arguments) {
      if (argument.kind != KernelArgument::Kind::kInt32 &&
          argument.kind != KernelArgument::Kind::kInt64) {
        continue;
      }
      const JsonView item = value.at(argument.parameter);
      const JsonView text = item.json().is_object() ? item.at("value") : item;
      for (const LaunchInstance& instance : launch.instances) {
        check_name(text, argument.value, instance);
        read_expression(text, ExpressionType::kInteger, op_, &instance);
      }
    }
  }

  /// An argument that is one name may be a tensor's and others that no expression has.
  void check_name(const JsonView& value, const std::string& name,
                  const LaunchInstance& instance) const {
    std::vector<std::string> all;
    for (const TensorSchema& tensor : op_.tensors) all.push_back(tensor.name);
    for (const WorkspacePart& part : section_.workspace) {
      if (part.op == op_.name) all.push_back(part.name);
    }
    const ExpressionNames names = expression_names(op_, &instance);
    for (const auto& [integer, code] : names.integers) all.push_back(integer);
    all.insert(all.end(), names.floats.begin(), names.floats.end());
    const bool known = std::ranges::find(all, name) != all.end() || names.words.contains(name);
    if (is_python_name(name) && !known) {
      value.fail(quote(name) + " names " + name + ", not one of " + join(all));
    }
  }

  void read_dtypes(const JsonView& value, Launch& launch) const {
    if (!value.json().is_object()) value.fail("is not an object");
    for (const auto& [name, item] : value.members()) {
      const TensorSchema* tensor = find_named(op_.tensors, name);
      if (tensor == nullptr || tensor->dtypes.empty()) {
        item.fail(quote(name) + " is not a tensor of " + op_.name + " that has dtypes of its own");
      }
      for (const JsonView& dtype : non_empty(item)) {
        if (std::ranges::find(tensor->dtypes, dtype.string()) == tensor->dtypes.end()) {
          dtype.fail(quote(dtype.string()) + " is not one of the dtypes of " + name);
        }
        launch.dtypes[name].push_back(dtype.string());
      }
    }
  }

  void read_constants(const JsonView& value, const Launch& launch,
                      std::map<std::string, KernelConstant>& constants) const {
    if (!value.json().is_object()) value.fail("is not an object");
    for (const auto& [parameter, item] : value.members()) {
      if (!is_python_name(parameter)) item.fail(quote(parameter) + " is not a name of Python's");
      if (std::ranges::find(launch.arguments, parameter, &KernelArgument::parameter) !=
          launch.arguments.end()) {
        item.fail(parameter + " is an argument already");
      }
      constants[parameter] = read_constant(item);
    }
  }

  /// What is meant as something else, and would be a text for the kernel.
  void check_text(const JsonView& value) const {
    const std::string text = value.string();
    if (text.starts_with("tl.")) {
      value.fail(quote(text) + " would be a text; a dtype is {\"dtype\": \"float32\"}");
    }
    const bool number = !text.empty() && std::ranges::all_of(text, is_digit);
    if (number || text == "True" || text == "False" || text == "None") {
      value.fail(quote(text) +
                 " would be a text; a number, true, false and null stand without quotes");
    }
    if (std::ranges::find(op_.symbols, text) != op_.symbols.end()) {
      value.fail(quote(text) +
                 " would be a text; an extent of the call is one of \"arguments\", or a number in "
                 "an instance whose \"when\" asks for it");
    }
  }

  KernelConstant read_constant(const JsonView& value) const {
    using Kind = KernelConstant::Kind;
    const Json& json = value.json();
    if (json.is_array()) value.fail("is an array; a constant is a value or an object");
    if (!json.is_object()) {
      if (json.is_string()) check_text(value);
      KernelConstant constant{.text = json.dump()};
      const bool fits = !json.is_number_unsigned() ||
                        json.get<std::uint64_t>() <=
                            static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
      if (json.is_number_integer() && fits) constant.integer = json.get<std::int64_t>();
      return constant;
    }
    check_keys(value, {}, {"dtype", "present", "attribute"});
    if (value.has("dtype")) {
      check_keys(value, {"dtype"});
      const JsonView dtype = value.at("dtype");
      const std::string name = dtype.string();
      if (!is_dtype(name) && part_of_workspace(name) == nullptr) {
        check_tensor(dtype, "is neither a dtype nor a tensor");
      }
      return {.kind = Kind::kDtype, .text = name, .integer = {}};
    }
    if (value.has("present")) {
      check_keys(value, {"present"});
      const JsonView tensor = value.at("present");
      if (!check_tensor(tensor, "is not a tensor").optional) {
        tensor.fail(tensor.string() + " is not optional");
      }
      return {.kind = Kind::kPresent, .text = tensor.string(), .integer = {}};
    }
    check_keys(value, {"attribute"});
    const std::string name = value.at("attribute").string();
    const AttributeSchema* attribute = find_named(op_.attributes, name);
    if (attribute == nullptr || attribute->values.empty()) {
      value.at("attribute")
          .fail(quote(name) + " is not a string attribute with values of " + op_.name);
    }
    return {.kind = Kind::kAttribute, .text = name, .integer = {}};
  }

  /// A number, or the constant of the instance that is one.
  static std::int64_t read_extent(const JsonView& value, const LaunchInstance& instance) {
    if (!value.json().is_string()) return read_count(value, 1, kMaxBlock);
    const auto constant = instance.constants.find(value.string());
    if (constant == instance.constants.end() || !constant->second.integer ||
        *constant->second.integer < 1 || *constant->second.integer > kMaxBlock) {
      value.fail(quote(value.string()) + " is not a constant of " + instance.name + " of 1 to " +
                 std::to_string(kMaxBlock));
    }
    return *constant->second.integer;
  }

  void read_descriptors(const JsonView& value, const Launch& launch,
                        LaunchInstance& instance) const {
    for (const auto& [parameter, item] : value.members()) {
      const auto argument =
          std::ranges::find(launch.arguments, parameter, &KernelArgument::parameter);
      const TensorSchema* tensor =
          argument == launch.arguments.end() ? nullptr : find_named(op_.tensors, argument->value);
      if (tensor == nullptr) item.fail(quote(parameter) + " is not an argument that is a tensor");
      const TensorSchema* owner = dtype_owner(op_, tensor->name);
      const auto compiled = launch.dtypes.find(owner->name);
      const std::vector<std::string>& dtypes =
          compiled != launch.dtypes.end() ? compiled->second : owner->dtypes;
      if (std::ranges::find(dtypes, "bool") != dtypes.end()) {
        item.fail("is of " + tensor->name + ", which may be bool: a descriptor is of numbers");
      }
      instance.descriptors[parameter] = read_descriptor(item, *tensor, instance);
    }
  }

  DescriptorSpec read_descriptor(const JsonView& value, const TensorSchema& tensor,
                                 const LaunchInstance& instance) const {
    const bool shaped = value.json().is_object();
    if (shaped) check_keys(value, {"block", "shape"});
    const auto two_of = [](const JsonView& list) {
      std::vector<JsonView> items = list.items();
      if (items.size() != 2) list.fail("has not two members, for rows and columns");
      return items;
    };
    const std::vector<JsonView> block = two_of(shaped ? value.at("block") : value);
    DescriptorSpec descriptor = {
        .block = {read_extent(block[0], instance), read_extent(block[1], instance)}, .shape = {}};
    if (!shaped) {
      if (tensor.shape.size() != 2) {
        value.fail("is of " + tensor.name + ", which has not two dimensions: add \"shape\"");
      }
      return descriptor;
    }
    if (tensor.layout == Layout::kRows) {
      value.at("shape").fail("is of " + tensor.name + ", whose rows may lie apart");
    }
    for (const JsonView& extent : two_of(value.at("shape"))) {
      descriptor.shape.push_back(read_expression(extent, ExpressionType::kInteger, op_, &instance));
      const std::string& text = descriptor.shape.back();
      if (number_of(text).value_or(1) < 1) {
        extent.fail("is " + text + "; a matrix has rows and columns");
      }
    }
    return descriptor;
  }

  /// A descriptor becomes eleven parameters where the GPU has none.
  static void check_count(const JsonView& value, const Launch& launch,
                          const LaunchInstance& instance) {
    if (launch.arguments.size() + 10 * instance.descriptors.size() <= kMaxArguments) return;
    value.fail("has more than 60 members" +
               std::string(instance.descriptors.empty() ? "" : ", a descriptor counted as 11"));
  }

  LaunchInstance read_instance(const JsonView& value, const Launch& launch,
                               const std::map<std::string, KernelConstant>& constants) const {
    check_keys(
        value, {"name"},
        {"when", "constants", "descriptors", "aligned", "warps", "stages", "registers", "targets"});
    LaunchInstance instance{.name = value.at("name").string(), .constants = constants};
    if (const std::string wrong = why_not_identifier(instance.name); !wrong.empty()) {
      value.at("name").fail(quote(instance.name) + " " + wrong);
    }
    if (find_named(launch.instances, instance.name) != nullptr) {
      value.at("name").fail("the name " + instance.name + " is already taken");
    }
    if (value.has("constants")) {
      read_constants(value.at("constants"), launch, instance.constants);
    }
    if (value.has("warps")) instance.warps = read_count(value.at("warps"), 1, kMaxWarps);
    if ((instance.warps & (instance.warps - 1)) != 0) {
      value.at("warps").fail("is " + std::to_string(instance.warps) + ", not a power of 2");
    }
    if (value.has("stages")) instance.stages = read_count(value.at("stages"), 1, kMaxStages);
    if (value.has("registers")) {
      instance.registers = read_count(value.at("registers"), 1, kMaxRegisters);
    }
    if (value.has("aligned")) instance.aligned = value.at("aligned").boolean();
    if (instance.aligned == true &&
        std::ranges::none_of(launch.arguments, &KernelArgument::aligned)) {
      value.at("aligned").fail(
          "its launch names none of its arguments in \"aligned\", so that it says nothing: add "
          "that list, or take this away");
    }
    if (value.has("targets")) instance.targets = read_list(value.at("targets"), read_target);
    for (const DeviceCode& target : instance.targets) {
      if (std::ranges::find(section_.targets, target) == section_.targets.end()) {
        value.at("targets").fail(to_string(target) + " is not one of the package's targets");
      }
    }
    if (value.has("when")) {
      instance.when = read_expression(value.at("when"), ExpressionType::kCondition, op_, &instance);
    }
    return instance;
  }

  /// Whether no call passes it by: the workspace, which is aligned, is no condition.
  static bool takes_all(const Launch& launch, const LaunchInstance& instance) {
    const auto asks = [](const KernelArgument& argument) {
      return argument.aligned && argument.kind != KernelArgument::Kind::kWorkspace;
    };
    return instance.when.empty() &&
           (instance.aligned != true || std::ranges::none_of(launch.arguments, asks));
  }

  /// For each target some instance is launched, or the caller is told why not.
  void check_last(const JsonView& value, const Launch& launch) const {
    for (const char* const key : {"dtypes", "expects"}) {
      if (!value.has(key) || !launch.otherwise.empty()) continue;
      value.at(key).fail("leaves out others: add \"otherwise\" with what a caller is told");
    }
    for (const DeviceCode& target : section_.targets) {
      const auto instances = instances_for(launch, target);
      const bool ends = !instances.empty() && takes_all(launch, *instances.back());
      if (!launch.otherwise.empty() || ends) continue;
      value.at("instances")
          .fail("the last one for " + to_string(target) +
                " has a condition: add one without, or \"otherwise\" with what a caller is told");
    }
  }

  /// Each instance is launched for some target: none before it takes all of that one's calls.
  void check_reached(const JsonView& value, const Launch& launch) const {
    std::set<std::string> reached;
    std::map<std::string, std::string> behind;
    for (const DeviceCode& target : section_.targets) {
      std::string taker;
      for (const LaunchInstance* instance : instances_for(launch, target)) {
        if (!taker.empty()) {
          behind[instance->name] = taker;
          continue;
        }
        reached.insert(instance->name);
        if (takes_all(launch, *instance)) taker = instance->name;
      }
    }
    const std::vector<JsonView> items = value.at("instances").items();
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::string& name = launch.instances[i].name;
      if (reached.contains(name)) continue;
      items[i].fail("is never launched: " + behind[name] +
                    ", before it, has no \"when\". The first instance whose \"when\" holds is "
                    "launched; none is timed");
    }
  }

  const OpSchema& op_;
  const LaunchSection& section_;
  std::string_view package_;
};

void add_uses(const Launch& launch, OpUses& uses) {
  std::vector<std::string>& texts = uses.texts;
  uses.conditions.insert(uses.conditions.end(), {launch.when, launch.expects});
  texts.insert(texts.end(), launch.grid.begin(), launch.grid.end());
  uses.arguments.insert(uses.arguments.end(), launch.arguments.begin(), launch.arguments.end());
  for (const auto& [tensor, dtypes] : launch.dtypes) texts.push_back(tensor);
  for (const LaunchInstance& instance : launch.instances) {
    uses.conditions.push_back(instance.when);
    for (const auto& [parameter, constant] : instance.constants) {
      if (constant.kind != KernelConstant::Kind::kValue) texts.push_back(constant.text);
    }
    for (const auto& [parameter, descriptor] : instance.descriptors) {
      texts.insert(texts.end(), descriptor.shape.begin(), descriptor.shape.end());
    }
  }
}

OpUses uses_of(const LaunchSection& section, const OpSchema& op) {
  OpUses uses;
  for (const WorkspacePart& part : section.workspace) {
    if (part.op == op.name) uses.texts.insert(uses.texts.end(), {part.count, part.dtype});
  }
  for (const Launch& launch : section.launches) {
    if (launch.op == op.name) add_uses(launch, uses);
  }
  return uses;
}

/// As a word of its own.
bool names(std::string_view text, std::string_view word) {
  const auto is_end = [text](std::size_t at) {
    return at >= text.size() || !is_word(text.substr(at, 1), "_");
  };
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    if ((at == 0 || is_end(at - 1)) && is_end(at + word.size())) return true;
  }
  return false;
}

bool any_names(const std::vector<std::string>& texts, std::string_view word) {
  return std::ranges::any_of(texts, [&](const std::string& text) { return names(text, word); });
}

bool is_named(const OpUses& uses, const std::string& name) {
  return any_names(uses.texts, name) || any_names(uses.conditions, name) ||
         std::ranges::any_of(uses.arguments, [&](const KernelArgument& argument) {
           return names(argument.value, name);
         });
}

}  // namespace

void check_used(const JsonView& value, const OpSchema& op, const OpUses& uses) {
  using Kind = KernelArgument::Kind;
  const auto is_given = [&](const std::string& tensor) {
    return std::ranges::any_of(uses.arguments, [&](const KernelArgument& argument) {
      return argument.kind == Kind::kTensor && argument.value == tensor;
    });
  };
  for (const TensorSchema& tensor : op.tensors) {
    const bool writes = tensor.output || tensor.inout;
    if (writes ? is_given(tensor.name) || any_names(uses.conditions, tensor.name + ".present")
               : is_named(uses, tensor.name)) {
      continue;
    }
    value.fail("none is given " + tensor.name + ", which " + op.name +
               (writes ? " writes" : " reads"));
  }
  for (const AttributeSchema& attribute : op.attributes) {
    const bool is_text =
        attribute.type == AttributeSchema::Type::kString && attribute.values.empty();
    if (!is_text && !is_named(uses, attribute.name)) {
      value.fail("none is given " + attribute.name + ", an attribute of " + op.name);
    }
  }
}

std::set<std::string> words_told(const Launch& launch, const OpSchema& op,
                                 const AttributeSchema& attribute) {
  std::set<std::string> told;
  const auto add_words = [&](const std::string& condition, const LaunchInstance* instance) {
    const ExpressionNames known = expression_names(op, instance);
    const auto compared = known.words.find(attribute.name);
    if (condition.empty() || compared == known.words.end()) return;
    // As C++ it has each word with its attribute, however package.json spells the comparison.
    const std::string code = translate(condition, ExpressionType::kCondition, known).text;
    for (const std::string& word : attribute.values) {
      if (names(code, compared->second.type + "::" + enumerator(word))) told.insert(word);
    }
  };
  add_words(launch.when, nullptr);
  add_words(launch.expects, nullptr);
  for (const LaunchInstance& instance : launch.instances) {
    add_words(instance.when, &instance);
    for (const auto& [parameter, constant] : instance.constants) {
      // Compiled anew for each.
      if (constant.kind == KernelConstant::Kind::kAttribute && constant.text == attribute.name) {
        told.insert(attribute.values.begin(), attribute.values.end());
      }
    }
  }
  return told;
}

const OpSchema& read_op(const JsonView& value, const std::vector<OpSchema>& ops) {
  if (!value.has("op")) value.fail("lacks op");
  const std::string name = value.at("op").string();
  const OpSchema* op = find_named(ops, name);
  if (op == nullptr) value.at("op").fail(quote(name) + " is not an op of the package");
  return *op;
}

std::string read_expression(const JsonView& value, ExpressionType type, const OpSchema& op,
                            const LaunchInstance* instance) {
  std::string text = read_expression_text(value);
  const CppExpression cpp = translate(text, type, expression_names(op, instance));
  if (!cpp.wrong.empty()) value.fail(quote(text) + " " + cpp.wrong);
  return text;
}

std::vector<std::string> read_grid(const JsonView& value, const OpSchema& op,
                                   const std::vector<LaunchInstance>& instances) {
  std::vector<std::string> grid;
  for (const JsonView& item : non_empty(value)) {
    const std::string text = read_expression_text(item);
    const auto wrong_in = [&](const LaunchInstance& instance) {
      return translate(text, ExpressionType::kInteger, expression_names(op, &instance)).wrong;
    };
    const auto is_right = [&](const LaunchInstance& each) { return wrong_in(each).empty(); };
    const auto wrong = std::ranges::find_if_not(instances, is_right);
    if (wrong != instances.end()) {
      // Where others are right it lacks a constant that they have.
      const bool lacks = std::ranges::any_of(instances, is_right);
      item.fail(quote(text) + " " + wrong_in(*wrong) +
                (lacks ? " in instance " + wrong->name : ""));
    }
    const std::int64_t most = grid.empty() ? std::numeric_limits<std::int32_t>::max() : 65535;
    grid.push_back(text);
    if (number_of(text).value_or(0) > most) {
      item.fail("is " + text + "; CUDA takes at most " + std::to_string(most) + " there");
    }
  }
  if (grid.size() > 3) value.fail("has more than 3 expressions");
  return grid;
}

KernelArgument read_kernel_argument(const JsonView& value, const OpSchema& op,
                                    const std::function<bool(std::string_view)>& is_part) {
  using Kind = KernelArgument::Kind;
  KernelArgument argument;
  const bool typed = value.json().is_object();
  if (typed) check_keys(value, {"value", "type"});
  const JsonView text = typed ? value.at("value") : value;
  argument.value = read_expression_text(text);
  const AttributeSchema* attribute = find_named(op.attributes, argument.value);
  const bool is_float = attribute != nullptr && attribute->type == AttributeSchema::Type::kFloat;
  if (is_float) {
    argument.kind = Kind::kFloat32;
  } else if (find_named(op.tensors, argument.value) != nullptr) {
    argument.kind = Kind::kTensor;
  } else if (is_part(argument.value)) {
    argument.kind = Kind::kWorkspace;
  }
  if (typed) argument.kind = read_type(value.at("type"), argument.kind);
  const std::optional<std::int64_t> number = number_of(argument.value);
  if (argument.kind == Kind::kInt32 && number && !std::in_range<std::int32_t>(*number)) {
    text.fail("is " + argument.value + ", which is no int32; expected {\"value\": " +
              argument.value + ", \"type\": \"int64\"}");
  }
  return argument;
}

LaunchSection parse_launches(const JsonView& cuda, const std::vector<OpSchema>& ops,
                             std::string_view package) {
  check_keys(cuda, {"targets", "launches"}, {"workspace"});
  LaunchSection section;
  section.targets = read_list(cuda.at("targets"), read_target);
  if (cuda.has("workspace")) {
    for (const JsonView& item : cuda.at("workspace").items()) {
      LaunchReader reader(read_op(item, ops), section, package);
      section.workspace.push_back(reader.read_part(item));
    }
  }
  for (const JsonView& item : non_empty(cuda.at("launches"))) {
    Launch launch = LaunchReader(read_op(item, ops), section, package).read(item);
    for (const Launch& other : section.launches) {
      if (other.kernel == launch.kernel && other.source != launch.source) {
        item.at("kernel").fail("the name " + launch.kernel + " is already that of a kernel of " +
                               other.source);
      }
    }
    section.launches.push_back(std::move(launch));
  }
  for (const OpSchema& op : ops) {
    if (std::ranges::find(section.launches, op.name, &Launch::op) == section.launches.end()) {
      cuda.at("launches").fail("has none of the op " + op.name);
    }
    check_used(cuda.at("launches"), op, uses_of(section, op));
  }
  return section;
}

const TensorSchema* dtype_owner(const OpSchema& op, std::string_view name) {
  const TensorSchema* tensor = find_named(op.tensors, name);
  while (tensor != nullptr && !tensor->same_dtype_as.empty()) {
    tensor = find_named(op.tensors, tensor->same_dtype_as);
  }
  return tensor;
}

ExpressionNames expression_names(const OpSchema& op, const LaunchInstance* instance) {
  ExpressionNames names;
  if (instance != nullptr) {
    names.integers["multiprocessors"] = "int64_t{device.facts().multiprocessors}";
    for (const auto& [parameter, constant] : instance->constants) {
      if (constant.integer) {
        names.integers[parameter] = "int64_t{" + std::to_string(*constant.integer) + "}";
      }
    }
  }
  for (const std::string& symbol : op.symbols) names.integers[symbol] = "call." + symbol;
  for (const AttributeSchema& attribute : op.attributes) {
    if (attribute.type == AttributeSchema::Type::kInt) {
      names.integers[attribute.name] = "call." + attribute.name;
    } else if (attribute.type == AttributeSchema::Type::kFloat) {
      names.floats.push_back(attribute.name);
    } else if (!attribute.values.empty()) {
      names.words[attribute.name] = {
          camel_case(op.name) + "Arguments::" + camel_case(attribute.name), attribute.values};
    }
  }
  for (const TensorSchema& tensor : op.tensors) {
    names.strides[tensor.name] = tensor.shape.size();
    if (tensor.optional) names.presents[tensor.name] = "call." + tensor.name + ".present";
  }
  return names;
}

std::vector<const LaunchInstance*> instances_for(const Launch& launch, const DeviceCode& target) {
  std::vector<const LaunchInstance*> instances;
  for (const LaunchInstance& instance : launch.instances) {
    const bool is_for = instance.targets.empty() ||
                        std::ranges::find(instance.targets, target) != instance.targets.end();
    if (is_for) instances.push_back(&instance);
  }
  return instances;
}

}  // namespace kiln::build
