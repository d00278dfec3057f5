// SPDX-License-Identifier: Apache-2.0
//
// Record: what a run of the check found, as "kiln.record/1": which library passed how many cases on
// which machine. kiln-registry publish reads it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "check.hpp"

namespace gated_mlp_test {

/// Throws std::runtime_error if the file cannot be written.
void write_record(const std::filesystem::path& file, const std::vector<Variant>& variants,
                  const std::string& commit);

}  // namespace gated_mlp_test
