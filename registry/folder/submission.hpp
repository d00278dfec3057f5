// SPDX-License-Identifier: Apache-2.0
//
// Submission: what is given for one version of one package. After build_output and records, before
// next_index, which joins it with what is published.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "registry/folder/build_output.hpp"
#include "registry/folder/records.hpp"

namespace kiln::registry {

struct Submission {
  std::string name;
  int version = 0;
  std::vector<BuiltVariant> built;
  std::vector<TestedPlaces> tested;  ///< for each of them; empty where no record speaks of it

  std::string subject() const;  ///< "geglu-mlp@1"
};

/// Told what is being done, line by line.
using Progress = std::function<void(const std::string&)>;

/// The variants in these folders by version, each once. Throws what read_build_output and
/// read_records do.
std::vector<Submission> read_submissions(const std::vector<std::filesystem::path>& built,
                                         const std::vector<std::filesystem::path>& records,
                                         const Progress& progress);

}  // namespace kiln::registry
