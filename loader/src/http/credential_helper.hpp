// SPDX-License-Identifier: Apache-2.0
//
// Credential helper: one run of docker-credential-<name>, a program that keeps logins in a keyring.
// Below credentials. May be called from several threads; starts no shell and handles no signal.
#pragma once

#include <chrono>
#include <optional>
#include <stop_token>
#include <string>

namespace kiln {

struct HelperAnswer {
  std::optional<std::string> output;  ///< of a run that ended well
  std::string failure;                ///< why there is none: "is not on PATH", "took over 30 s"
};

/// Runs `docker-credential-<name> get` with `server` on its standard input; its standard error is
/// dropped. At most 64 KiB of output and `time` are waited for. Throws kCancelled.
HelperAnswer ask_helper(const std::string& name, const std::string& server,
                        std::chrono::milliseconds time, const std::stop_token& stop);

}  // namespace kiln
