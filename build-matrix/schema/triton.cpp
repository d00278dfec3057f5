// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/schema/triton.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/join.hpp"
#include "build-matrix/schema/schema.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kTypes = {
    {{"float64", "fp64"},
     {"float32", "fp32"},
     {"float16", "fp16"},
     {"bfloat16", "bf16"},
     {"float8_e4m3fn", "fp8e4nv"},
     {"float8_e5m2", "fp8e5"},
     {"int64", "i64"},
     {"int32", "i32"},
     {"int16", "i16"},
     {"int8", "i8"},
     {"uint8", "u8"},
     {"bool", "i1"}}};

/// Triton's name of a dtype; empty for any other text.
std::string triton_type(std::string_view dtype) {
  for (const auto& [name, type] : kTypes) {
    if (name == dtype) return std::string(type);
  }
  return "";
}

/// The forms of one instance of a launch.
class InstancePlanner {
 public:
  InstancePlanner(const Package& package, const OpSchema& op, const Launch& launch,
                  const LaunchInstance& instance)
      : op_(op), launch_(launch), instance_(instance) {
    for (const WorkspacePart& part : package.cuda.launch.workspace) {
      if (part.op == op.name) parts_[part.name] = part.dtype;
    }
    collect_choices();
  }

  const std::vector<FormChoice>& choices() const { return choices_; }

  /// That of the choice numbers `chosen`, one for each of choices().
  TritonForm form(const std::vector<std::size_t>& chosen) const {
    Json signature = Json::object();
    Json constants = Json::object();
    Json aligned = Json::array();
    const bool all_aligned =
        instance_.aligned.value_or(value_of(FormChoice::Kind::kAligned, "", chosen) == 1);
    for (const KernelArgument& argument : launch_.arguments) {
      const std::string type = type_of(argument, chosen);
      if (type.empty()) {
        constants[argument.parameter] = nullptr;
        continue;
      }
      signature[argument.parameter] = type;
      if (counts(argument) && all_aligned) aligned.push_back(argument.parameter);
    }
    for (const auto& [parameter, constant] : instance_.constants) {
      constants[parameter] = value_of(constant, chosen);
    }
    const Json options = {{"signature", signature},     {"constants", constants},
                          {"aligned", aligned},         {"warps", instance_.warps},
                          {"stages", instance_.stages}, {"registers", instance_.registers}};
    return {.function = name_of(chosen), .options = dump_json(options)};
  }

 private:
  void collect_choices() {
    for (const KernelArgument& argument : launch_.arguments) {
      if (argument.kind == KernelArgument::Kind::kTensor) {
        add_dtype(argument.value);
        add_presence(argument.value);
      } else if (argument.kind == KernelArgument::Kind::kWorkspace) {
        add_dtype(parts_.at(argument.value));
      }
    }
    for (const auto& [parameter, constant] : instance_.constants) {
      using Kind = KernelConstant::Kind;
      if (constant.kind == Kind::kDtype) {
        const auto part = parts_.find(constant.text);
        add_dtype(part == parts_.end() ? constant.text : part->second);
      } else if (constant.kind == Kind::kPresent) {
        add_presence(constant.text);
      } else if (constant.kind == Kind::kAttribute) {
        const auto attribute =
            std::ranges::find(op_.attributes, constant.text, &AttributeSchema::name);
        add({FormChoice::Kind::kAttribute, constant.text, attribute->values});
      }
    }
    if (!instance_.aligned &&
        std::ranges::any_of(launch_.arguments, [this](const auto& each) { return counts(each); })) {
      add({FormChoice::Kind::kAligned, "", {}});
    }
  }

  /// What a descriptor is of is aligned anyway.
  bool counts(const KernelArgument& argument) const {
    return argument.aligned && !instance_.descriptors.contains(argument.parameter);
  }

  void add(FormChoice choice) {
    const auto same = [&](const FormChoice& other) {
      return other.kind == choice.kind && other.name == choice.name;
    };
    if (std::ranges::none_of(choices_, same)) choices_.push_back(std::move(choice));
  }

  /// A tensor that may have one dtype alone decides nothing.
  void add_dtype(const std::string& name) {
    const TensorSchema* owner = dtype_owner(op_, name);
    if (owner == nullptr || dtypes_of(*owner).size() == 1) return;
    add({FormChoice::Kind::kDtype, owner->name, dtypes_of(*owner)});
  }

  /// Those that the launch is compiled for.
  const std::vector<std::string>& dtypes_of(const TensorSchema& tensor) const {
    const auto named = launch_.dtypes.find(tensor.name);
    return named == launch_.dtypes.end() ? tensor.dtypes : named->second;
  }

  void add_presence(const std::string& name) {
    const auto tensor = std::ranges::find(op_.tensors, name, &TensorSchema::name);
    if (tensor->optional) add({FormChoice::Kind::kPresent, name, {}});
  }

  /// What was chosen; 1 where there is no such choice: a tensor that is always there.
  std::size_t value_of(FormChoice::Kind kind, std::string_view name,
                       const std::vector<std::size_t>& chosen) const {
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      if (choices_[i].kind == kind && choices_[i].name == name) return chosen[i];
    }
    return 1;
  }

  /// Of a dtype, a tensor or a part of the workspace.
  std::string type_named(const std::string& name, const std::vector<std::size_t>& chosen) const {
    const auto part = parts_.find(name);
    const std::string& whose = part == parts_.end() ? name : part->second;
    const TensorSchema* owner = dtype_owner(op_, whose);
    if (owner == nullptr) return triton_type(whose);
    const std::vector<std::string>& dtypes = dtypes_of(*owner);
    if (dtypes.size() == 1) return triton_type(dtypes.front());
    return triton_type(dtypes.at(value_of(FormChoice::Kind::kDtype, owner->name, chosen)));
  }

  /// Empty of an optional tensor that is not there.
  std::string type_of(const KernelArgument& argument,
                      const std::vector<std::size_t>& chosen) const {
    switch (argument.kind) {
      case KernelArgument::Kind::kTensor:
        if (value_of(FormChoice::Kind::kPresent, argument.value, chosen) == 0) return "";
        if (const auto found = instance_.descriptors.find(argument.parameter);
            found != instance_.descriptors.end()) {
          const auto& [rows, columns] = found->second.block;
          return "tensordesc<" + type_named(argument.value, chosen) + "[" + std::to_string(rows) +
                 ", " + std::to_string(columns) + "]>";
        }
        return "*" + type_named(argument.value, chosen);
      case KernelArgument::Kind::kWorkspace:
        return "*" + type_named(argument.value, chosen);
      case KernelArgument::Kind::kInt32:
        return "i32";
      case KernelArgument::Kind::kInt64:
        return "i64";
      case KernelArgument::Kind::kFloat32:
        return "fp32";
      default:
        return "fp64";
    }
  }

  Json value_of(const KernelConstant& constant, const std::vector<std::size_t>& chosen) const {
    switch (constant.kind) {
      case KernelConstant::Kind::kDtype:
        return {{"dtype", type_named(constant.text, chosen)}};
      case KernelConstant::Kind::kPresent:
        return value_of(FormChoice::Kind::kPresent, constant.text, chosen) == 1;
      case KernelConstant::Kind::kAttribute: {
        const auto choice = std::ranges::find_if(choices_, [&](const FormChoice& each) {
          return each.kind == FormChoice::Kind::kAttribute && each.name == constant.text;
        });
        const std::string& word =
            choice->words.at(chosen[static_cast<std::size_t>(choice - choices_.begin())]);
        const bool is_flag = std::ranges::all_of(
            choice->words, [](const std::string& each) { return each == "yes" || each == "no"; });
        return is_flag ? Json(word == "yes") : Json(word);
      }
      default:
        return parse_json(constant.text, "constant");
    }
  }

  std::string name_of(const std::vector<std::size_t>& chosen) const {
    std::string name = launch_.kernel + "_" + instance_.name;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      const FormChoice& choice = choices_[i];
      switch (choice.kind) {
        case FormChoice::Kind::kDtype:
          name += "_" + triton_type(choice.words[chosen[i]]);
          break;
        case FormChoice::Kind::kPresent:
          if (chosen[i] == 0) name += "_no_" + choice.name;
          break;
        case FormChoice::Kind::kAttribute: {
          std::string word = choice.words[chosen[i]];
          std::ranges::replace(word, '-', '_');
          name += "_" + word;
          break;
        }
        case FormChoice::Kind::kAligned:
          if (chosen[i] == 1) name += "_x16";
      }
    }
    return name;
  }

  const OpSchema& op_;
  const Launch& launch_;
  const LaunchInstance& instance_;
  std::map<std::string, std::string> parts_;  // of the workspace, and their dtypes
  std::vector<FormChoice> choices_;
};

/// The position in its image; one that compiles the same is there once.
std::size_t add_form(TritonImage& image, TritonForm form) {
  const auto same = std::ranges::find(image.forms, form.options, &TritonForm::options);
  if (same != image.forms.end()) return static_cast<std::size_t>(same - image.forms.begin());
  const std::string plain = form.function;
  for (int number = 2;
       std::ranges::find(image.forms, form.function, &TritonForm::function) != image.forms.end();
       ++number) {
    form.function = plain + "_" + std::to_string(number);
  }
  image.forms.push_back(std::move(form));
  return image.forms.size() - 1;
}

TritonImage& image_of(const Launch& launch, std::vector<TritonImage>& images) {
  const auto known = std::ranges::find(images, launch.kernel, &TritonImage::kernel);
  if (known != images.end()) return *known;
  return images.emplace_back(TritonImage{launch.source, launch.kernel, {}});
}

/// Calls `take` with each combination of choices, in the order of their numbers.
template <class Take>
void for_each_combination(const std::vector<FormChoice>& choices, const Take& take) {
  std::vector<std::size_t> chosen(choices.size(), 0);
  while (true) {
    take(chosen);
    std::size_t at = choices.size();
    while (at > 0 && ++chosen[at - 1] == choices[at - 1].count()) chosen[--at] = 0;
    if (at == 0) return;
  }
}

}  // namespace

TritonPlan plan_triton(const Package& package, const DeviceCode& target) {
  TritonPlan plan;
  for (const Launch& launch : package.cuda.launch.launches) {
    const auto op = std::ranges::find(package.ops, launch.op, &OpSchema::name);
    std::vector<InstanceForms> instances;
    for (const LaunchInstance* instance : instances_for(launch, target)) {
      const InstancePlanner planner(package, *op, launch, *instance);
      InstanceForms forms{.choices = planner.choices(), .forms = {}};
      TritonImage& image = image_of(launch, plan.images);
      for_each_combination(forms.choices, [&](const std::vector<std::size_t>& chosen) {
        forms.forms.push_back(add_form(image, planner.form(chosen)));
      });
      instances.push_back(std::move(forms));
    }
    plan.instances.push_back(std::move(instances));
  }
  // From positions in an image to those among all.
  std::map<std::string, std::size_t> first;
  std::size_t count = 0;
  for (const TritonImage& image : plan.images) {
    first[image.kernel] = count;
    count += image.forms.size();
  }
  for (std::size_t l = 0; l < plan.instances.size(); ++l) {
    for (InstanceForms& instance : plan.instances[l]) {
      for (std::size_t& form : instance.forms) {
        form += first.at(package.cuda.launch.launches[l].kernel);
      }
    }
  }
  if (count > kMaxKernels || plan.images.size() > kMaxImages) {
    throw Error(ErrorCode::kBuild,
                "expand " + package.name + " for " + to_string(target) + ": its launches have " +
                    std::to_string(plan.images.size()) + " kernels in " + std::to_string(count) +
                    " forms; at most 32 in 256 can be loaded. Each dtype, optional tensor, word "
                    "and \"aligned\" multiplies the forms of its instances: take some away");
  }
  return plan;
}

TritonFacts parse_triton_facts(std::string_view text, const std::string& subject) {
  const Json json = parse_json(text, subject);
  const JsonView view(json, subject);
  TritonFacts facts;
  facts.parameters = view.at("parameters").strings();
  facts.maps = view.at("maps").boolean();
  for (const auto& [function, form] : view.at("forms").members()) {
    facts.forms[function] = {
        .threads = static_cast<std::uint32_t>(form.at("threads").unsigned_integer()),
        .shared = static_cast<std::uint32_t>(form.at("shared").unsigned_integer()),
        .scratch = static_cast<int>(form.at("scratch").unsigned_integer())};
  }
  return facts;
}

std::string too_large(const TritonFacts& facts, const DeviceCode& target) {
  // Bytes that a block may have: CUDA C++ Programming Guide, compute capabilities.
  const Version gpu = target.capability;
  std::uint32_t most = 232448;
  if (gpu == Version{7, 5}) most = 65536;
  if (gpu == Version{8, 0} || gpu == Version{8, 7}) most = 166912;
  if (gpu == Version{8, 6} || gpu == Version{8, 9} || gpu.major == 12) most = 101376;
  std::string lines;
  if (target.kind == DeviceCode::Kind::kPtx) return lines;
  for (const auto& [function, form] : facts.forms) {
    if (form.shared <= most) continue;
    lines += function + " needs " + std::to_string(form.shared) + " bytes of shared memory, " +
             to_string(target) + " has " + std::to_string(most) +
             ": calls of it are refused. Give its instance other \"targets\", and these another "
             "one\n";
  }
  return lines;
}

std::string performance_losses(std::string_view ptxas) {
  std::string lines;
  for (const std::string_view line : split(ptxas, '\n')) {
    const std::size_t begin = line.find("Potential Performance Loss");
    if (begin != std::string_view::npos) lines += std::string(line.substr(begin)) + "\n";
  }
  return lines;
}

int ptx_version(Version toolkit) {
  constexpr int kNewestOfTriton = 90;
  if (toolkit.major == 11) return 70 + toolkit.minor;
  if (toolkit.major == 12) return toolkit.minor < 6 ? 80 + toolkit.minor : 79 + toolkit.minor;
  return kNewestOfTriton;
}

std::string_view ptxas_for(Version toolkit) {
  return toolkit.major < 13 ? "ptxas" : "ptxas-blackwell";
}

}  // namespace kiln::build
