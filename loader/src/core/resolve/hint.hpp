// SPDX-License-Identifier: Apache-2.0
//
// Hint: where no variant fits, the one that came nearest and what would make it fit. The last part
// of resolve. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "resolve/rules.hpp"

namespace kiln {

/// `best_first` holds positions in the index, in the order of resolve's table.
std::string make_hint(const Index& index, const std::vector<Fit>& fits,
                      const std::vector<std::size_t>& best_first, const Question& question);

/// "GPU 0-3 NVIDIA H200 (9.0), GPU 4 NVIDIA A100 (8.0)": equal neighbours in one.
std::string describe_gpus(const std::vector<Gpu>& gpus);

}  // namespace kiln
