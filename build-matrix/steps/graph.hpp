// SPDX-License-Identifier: Apache-2.0
//
// Graph: the steps of a build, and the files that they begin with, in its work folder: the
// generated sources and a recipe for each variant. Before it: expand and toolchain. After it:
// execute. Where a step leaves its outputs depends on names alone, so that a second build finds
// those of the first.
//
//   OUT/.work/<package>/gen/       package.gen.hpp, exports.map: the same for every variant
//   OUT/.work/<owner>/host/…       host objects, shared by the variants of one CPU level
//   OUT/.work/<owner>/device/…     images, shared by the variants of one toolkit and target
//   OUT/.work/<owner>/check/<arch>/    objects of the check that travels in the dev layer, and it
//   The owner of what is made of a source is the package, or one folder with all that it reads: a
//   folder beside the package, kiln.sdk and so on. Other packages then have it, too.
//   OUT/.work/<package>/<variant>/ recipe, glue, what is made of launches, the linked library
//   OUT/<package>/<variant>/       the archive and its documents
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "build-matrix/compilers/toolchain.hpp"
#include "build-matrix/plan/expand.hpp"
#include "build-matrix/plan/here.hpp"
#include "build-matrix/plan/matrix.hpp"
#include "build-matrix/plan/recipe.hpp"
#include "build-matrix/schema/schema.hpp"
#include "build-matrix/steps/sources.hpp"
#include "build-matrix/steps/step.hpp"

namespace kiln::build {

/// One package, and which of its variants are wanted.
struct Job {
  Package package;
  std::filesystem::path folder;  ///< absolute
  Expansion all;
  std::vector<VariantPlan> variants;
  std::vector<Choice> choices = {};  ///< of the machine that it is built for; empty: of no one
};

/// Where things are on this machine; all absolute.
struct Places {
  std::filesystem::path out;
  std::filesystem::path self;  ///< this program, for its steps
  std::string self_digest = {};
  std::vector<std::string> environment = {};  ///< that its steps get
  std::filesystem::path sdk;                  ///< build-matrix/sdk
  std::filesystem::path abi;                  ///< the folder that holds kiln/abi.h
  std::filesystem::path dlpack;               ///< the folder that holds dlpack/dlpack.h
  std::filesystem::path license;  ///< the text of Apache-2.0, for packages without a LICENSE
  std::filesystem::path triton_step = {};  ///< triton_step.py
  std::filesystem::path check = {};        ///< build-matrix/check; empty: none is made
  std::filesystem::path loader = {};       ///< loader/src, whose calls a check is made of

  /// A folder for each package, "include", and hidden ones, whose names no package has.
  std::filesystem::path work() const { return out / ".work"; }
};

/// The file whose text goes into the archives as LICENSE: the package's own, else ours if the
/// package has the same licence. Throws Error(kBuild) for another licence without a text.
std::filesystem::path license_of(const Job& job, const Places& places);

/// Writes the generated files; returns the steps, each after those whose outputs it reads.
std::vector<Step> write_graph(const std::vector<Job>& jobs, Version glibc,
                              const Toolchain& toolchain, const Places& places, Sources& sources);

}  // namespace kiln::build
