// SPDX-License-Identifier: Apache-2.0
//
// Progress: what an install is doing, on stderr: one line for each finished download and for each
// request that is made again; on a terminal also one line for all that is under way. Nothing with
// --quiet.
#pragma once

#include "kiln/event.hpp"

namespace kiln::cli {

Observer progress_on_stderr(bool quiet);

}  // namespace kiln::cli
