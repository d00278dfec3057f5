// SPDX-License-Identifier: Apache-2.0
//
// Cancel: Ctrl-C, SIGTERM and SIGHUP become a request to stop, so that what is under way removes
// its traces and the command ends with exit code 130. The same signal once more ends the process at
// once; the cache is whole even then.
#pragma once

#include <stop_token>

#include "base/file_lock.hpp"

namespace kiln::cli {

/// What asks a command to stop. Called once, by the main thread, when one begins.
std::stop_token stop_on_signals();

/// How a command waits for another process that holds what it is to change: it says on stderr for
/// which one, unless it is to be quiet.
Waiting waiting_for_others(bool quiet, std::stop_token stop);

}  // namespace kiln::cli
