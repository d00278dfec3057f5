// SPDX-License-Identifier: Apache-2.0
//
// Expand: the matrix and one package give the variants to build, and what is not built with the
// reason. Before it: matrix, schema. After it: recipe. Pure: no I/O, no globals; the order of the
// answer is the order of the axes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "build-matrix/plan/matrix.hpp"
#include "build-matrix/schema/schema.hpp"
#include "build-matrix/schema/triton.hpp"
#include "documents/target.hpp"

namespace kiln::build {

/// One image of a library.
struct ImagePlan {
  std::string source;                  ///< relative to the package's folder
  std::string stem;                    ///< its name
  DeviceCode code;                     ///< what the source is compiled to
  std::vector<TritonForm> forms = {};  ///< of a Triton kernel's; else none
  bool is_triton() const { return !forms.empty(); }
};

/// One library to build.
struct VariantPlan {
  std::string id;  ///< "cu12.9-sm_90a-x86_64", "cpu-x86-64-v3"
  CpuLevel cpu;    ///< of the host code; its arch is the variant's
  std::optional<Version> toolkit;
  std::optional<Version> min_driver;
  std::optional<DeviceCode> target;    ///< set, like the two above, for a GPU variant
  std::vector<std::string> host;       ///< C++ sources, relative to the package's folder
  std::vector<ImagePlan> images;       ///< in the order of package.json
  std::vector<std::string> headers;    ///< of the toolchain, that images may include
  std::vector<std::string> libraries;  ///< sonames that it looks up at run time
  std::string risk;                    ///< of its toolkit's compiler; empty: none is known
  std::optional<Binary> binary = {};   ///< that it is made of, in the place of sources
  bool is_cuda() const { return toolkit.has_value(); }
  bool is_triton() const { return !images.empty() && images.front().is_triton(); }
  /// A tvm-ffi library, which travels inside of the package's own.
  bool carries_libraries() const { return binary && binary->abi == Binary::Abi::kTvmFfi; }
  /// What it runs on: the target, or all that the binary has code for; none for a CPU variant.
  std::vector<DeviceCode> device_code() const;
};

struct ExcludedVariant {
  std::string id;
  std::string reason;
};

struct Expansion {
  std::vector<VariantPlan> variants;
  std::vector<ExcludedVariant> excluded;
};

/// Throws Error(kBuild) if the package names a target or a CPU level that the matrix does not have:
/// that variant would silently never be built.
Expansion expand(const Matrix& matrix, const Package& package);

}  // namespace kiln::build
