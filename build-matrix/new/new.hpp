// SPDX-License-Identifier: Apache-2.0
//
// New: the folder of a package to start from: schema, sources, typed layer, numeric check, card.
// It compiles and passes as it is. Before kiln-build, which builds it. The files are in new/.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kiln::build {

struct NewPackage {
  std::filesystem::path folder;  ///< its last word is the package's name
  bool cpu = true;
  bool cuda = true;     ///< GPU code in CUDA C++
  bool triton = false;  ///< GPU code in Triton; not both
};

/// The files that were written, relative to the folder, sorted. The folder is whole or absent.
/// Throws kUsage for text that is not a name, for a package without CPU and GPU, and for one with
/// two kinds of GPU code; kConflict where there is something already; and what writing throws.
std::vector<std::string> write_new_package(const NewPackage& package);

}  // namespace kiln::build
