// SPDX-License-Identifier: Apache-2.0
//
// Progress: what an install is doing, on stderr: one bar a download on a terminal, one line for
// each finished download otherwise, one for each request that is made again, nothing with --quiet.
#pragma once

#include "kiln/event.hpp"

namespace kiln::cli {

Observer progress_on_stderr(bool quiet);

}  // namespace kiln::cli
