// SPDX-License-Identifier: Apache-2.0
//
// Launch: how an op without host code of its own runs its kernels, as package.json has it: which
// kernel, compiled how, with what, and on which grid. docs/TRITON.md is the manual. A part of
// schema: what is read here holds together. After it: triton, which lists what is compiled, and
// launch_code, which writes the host code. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "build-matrix/schema/expression.hpp"
#include "documents/target.hpp"

namespace kiln {
class JsonView;
}

namespace kiln::build {

struct AttributeSchema;
struct OpSchema;
struct TensorSchema;

/// What a kernel's parameter gets at run time.
struct KernelArgument {
  enum class Kind { kTensor, kWorkspace, kInt32, kInt64, kFloat32, kFloat64 };
  std::string parameter;
  Kind kind = Kind::kInt32;
  std::string value;  ///< a tensor, a part of the workspace, a float attribute, or an expression
  bool aligned = false;
};

/// What it gets when it is compiled.
struct KernelConstant {
  enum class Kind { kValue, kDtype, kPresent, kAttribute };
  Kind kind = Kind::kValue;
  std::string text;  ///< kValue: as JSON. kDtype: a dtype or whose it is; a tensor; an attribute
  std::optional<std::int64_t> integer;  ///< of a kValue that expressions may name
};

/// A descriptor in the place of an argument's address: Triton's, made by the host, of a matrix.
struct DescriptorSpec {
  std::array<std::int64_t, 2> block = {};  ///< rows and columns
  std::vector<std::string> shape;          ///< two expressions; empty: the tensor's own extents
};

struct LaunchInstance {
  std::string name;
  std::string when;                                   ///< empty: always
  std::map<std::string, KernelConstant> constants;    ///< by parameter; the launch's too
  std::map<std::string, DescriptorSpec> descriptors;  ///< by parameter; the launch's too
  int warps = 4;
  int stages = 3;
  int registers = 0;  ///< the most of a thread; 0: as the compiler likes
  /// True: launched, and compiled, where all that is aligned is a multiple of 16. False: nothing is
  /// assumed. Neither: both are compiled.
  std::optional<bool> aligned;
  std::vector<DeviceCode> targets;  ///< empty: all
};

struct Launch {
  std::string op;
  std::string source;  ///< "csrc/row_softmax.py", see Package
  std::string kernel;  ///< the function in it
  std::string when;    ///< empty: always
  std::vector<std::string> grid;
  std::vector<KernelArgument> arguments;
  /// By tensor, those of its dtypes that the kernel is compiled for; of others not named: all.
  std::map<std::string, std::vector<std::string>> dtypes;
  std::string expects;  ///< what all instances need; empty: nothing
  std::vector<LaunchInstance> instances;
  /// What the caller is told of other dtypes, where `expects` does not hold, and where no `when`
  /// of an instance does.
  std::string otherwise;
};

/// A named part of an op's workspace.
struct WorkspacePart {
  std::string op;
  std::string name;
  std::string dtype;  ///< a dtype, or the tensor that has the same one
  std::string count;  ///< of elements: an expression
};

struct LaunchSection {
  std::vector<DeviceCode> targets;
  std::vector<Launch> launches;  ///< an op's in the order in which it runs them
  std::vector<WorkspacePart> workspace;
};

/// The op that a launch, or a part of a workspace, names. Throws what JsonView throws.
const OpSchema& read_op(const JsonView& value, const std::vector<OpSchema>& ops);

/// An expression, or a number in its place, that translates. Without an instance: one that is
/// asked for before there is an instance or a device. Throws what JsonView throws.
std::string read_expression(const JsonView& value, ExpressionType type, const OpSchema& op,
                            const LaunchInstance* instance = nullptr);

/// One to three expressions, each of every instance; a number among them is no larger than CUDA
/// takes. Throws what JsonView throws.
std::vector<std::string> read_grid(const JsonView& value, const OpSchema& op,
                                   const std::vector<LaunchInstance>& instances);

/// What a kernel gets for one parameter; which one is the caller's to say. `is_part`: whether a
/// name is a part of the op's workspace. Throws what JsonView throws.
KernelArgument read_kernel_argument(const JsonView& value, const OpSchema& op,
                                    const std::function<bool(std::string_view)>& is_part);

/// Where the launches of an op name its tensors and attributes.
struct OpUses {
  std::vector<KernelArgument> arguments;
  std::vector<std::string> conditions;
  std::vector<std::string> texts;  ///< the other expressions, and names
};

/// What a caller brings is named by a launch, but a text, which none can be given; what it gets is
/// given to one, or a condition asks whether it is there. Throws what JsonView throws.
void check_used(const JsonView& value, const OpSchema& op, const OpUses& uses);

/// Of an attribute's values, those that a launch tells from the others.
std::set<std::string> words_told(const Launch& launch, const OpSchema& op,
                                 const AttributeSchema& attribute);

/// Of the member "cuda" of package.json. `package` is its name. Throws what JsonView throws.
LaunchSection parse_launches(const JsonView& cuda, const std::vector<OpSchema>& ops,
                             std::string_view package);

/// The tensor that decides a dtype: `name`, or the one whose dtype it has. Null: no tensor does.
const TensorSchema* dtype_owner(const OpSchema& op, std::string_view name);

/// What expressions of an op may name; of an instance its constants too, and the multiprocessors.
ExpressionNames expression_names(const OpSchema& op, const LaunchInstance* instance);

/// The instances that a variant for `target` has.
std::vector<const LaunchInstance*> instances_for(const Launch& launch, const DeviceCode& target);

}  // namespace kiln::build
