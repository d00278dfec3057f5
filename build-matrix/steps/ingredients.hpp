// SPDX-License-Identifier: Apache-2.0
//
// Ingredients: everything that one variant is made of, for its build id, and what the generators
// are told of it. A part of graph; after it: recipe.
#pragma once

#include <string>
#include <vector>

#include "build-matrix/codegen/codegen.hpp"
#include "build-matrix/plan/recipe.hpp"
#include "build-matrix/steps/package_build.hpp"
#include "build-matrix/steps/triton_graph.hpp"

namespace kiln::build {

GlueFacts glue_facts(const VariantPlan& plan, const std::string& build_id);

/// Those of the SDK, by their names in sdk/src.
std::vector<std::string> sdk_sources_of(const VariantPlan& plan);

TritonTool triton_tool(const PackageBuild& build, const VariantPlan& plan);

/// Reads every source, and what it includes. Throws Error(kBuild).
Ingredients collect_ingredients(const PackageBuild& build, const VariantPlan& plan);

}  // namespace kiln::build
