// SPDX-License-Identifier: Apache-2.0
//
// Triton: which kernels of Triton files are compiled, and into how many forms, for one target; and
// what the compiler says of them. Before it: launch. After it: expand, whose images these are,
// triton_step.py, which compiles one, and launch_code. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "build-matrix/schema/launch.hpp"
#include "documents/target.hpp"

namespace kiln::build {

struct Package;

/// A kernel compiled for certain dtypes, constants and hints.
struct TritonForm {
  std::string function;  ///< its name in the image: "row_softmax_narrow_bf16_x16"
  std::string options;   ///< what triton_step.py takes, but for the function: a JSON object
};

/// One image: all forms of one kernel.
struct TritonImage {
  std::string source;
  std::string kernel;  ///< also the image's name
  std::vector<TritonForm> forms;
};

/// What a call decides by, among the forms of an instance.
struct FormChoice {
  enum class Kind { kDtype, kPresent, kAttribute, kAligned };
  Kind kind = Kind::kAligned;
  std::string name;                ///< of a tensor, or of an attribute
  std::vector<std::string> words;  ///< dtypes, or the attribute's; else empty
  std::size_t count() const { return words.empty() ? 2 : words.size(); }
};

/// The forms of an instance: that of the choices c0, c1, … is number (c0 * count1 + c1) * count2 …
struct InstanceForms {
  std::vector<FormChoice> choices;
  std::vector<std::size_t> forms;  ///< by position among all forms of the variant
};

struct TritonPlan {
  std::vector<TritonImage> images;
  std::vector<std::vector<InstanceForms>> instances;  ///< by launch, then by instances_for
};

/// Throws Error(kBuild) where the launcher would have no room for all forms.
TritonPlan plan_triton(const Package& package, const DeviceCode& target);

/// What the compiler says of an image.
struct TritonFacts {
  struct Form {
    std::uint32_t threads = 0;  ///< of a block
    std::uint32_t shared = 0;   ///< bytes of dynamic shared memory
    int scratch = 0;            ///< null pointers that follow the arguments
  };
  std::vector<std::string> parameters;  ///< of the function, in its order
  bool maps = false;                    ///< a descriptor is a map for the GPU's copy engine
  std::map<std::string, Form> forms;    ///< by function
};

TritonFacts parse_triton_facts(std::string_view text, const std::string& subject);

/// Lines on forms that no GPU of the target can run, as they need more shared memory: a call that
/// would take one is refused. Of PTX nothing is known.
std::string too_large(const TritonFacts& facts, const DeviceCode& target);

/// Of ptxas's words the lines on products that wait for one another, which takes twice as long.
std::string performance_losses(std::string_view ptxas);

/// "sm_90" of CUDA 12.9: 88, for PTX 8.8. A driver need not know more than the toolkit does.
int ptx_version(Version toolkit);

/// The program of the wheel that makes machine code for drivers of this toolkit's major version.
std::string_view ptxas_for(Version toolkit);

}  // namespace kiln::build
