// SPDX-License-Identifier: Apache-2.0
//
// Here: which variants of a package one machine would take, and why. Before it: expand, and the
// loader's probe or a file of facts. The answer is the loader's own resolve, so that what `kiln
// build --here` builds is what get_kernel chooses. Pure.
#pragma once

#include <string>
#include <vector>

#include "build-matrix/plan/expand.hpp"
#include "kiln/device.hpp"
#include "kiln/host.hpp"

namespace kiln::build {

/// What one device of a machine takes.
struct Choice {
  Device device;
  std::string variant;  ///< its id; empty if nothing fits
  std::string why;      ///< how its code fits, or what came nearest and what would make it fit
};

/// Of the CPU, then of each GPU. Of a host whose libraries were not looked at, no variant is taken
/// that looks one up.
std::vector<Choice> choices_of(const Host& host, const Package& package,
                               const std::vector<VariantPlan>& variants, Version glibc);

/// The sonames that the answer depends on.
std::vector<std::string> libraries_of(const std::vector<VariantPlan>& variants);

}  // namespace kiln::build
