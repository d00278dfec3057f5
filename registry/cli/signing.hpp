// SPDX-License-Identifier: Apache-2.0
//
// Signing: what the verbs share that sign a registry's metadata: sign, delegate, yank, advisory.
#pragma once

#include <string>
#include <vector>

#include "registry/cli/registry_command.hpp"
#include "registry/trust/sign/sign.hpp"

namespace kiln::registry {

struct SignWords {
  std::vector<std::string> keys;
  std::string onto;
  std::vector<std::string> only;
  SignRequest request;  ///< with what is read as it is typed
};

/// --root, --key; and --onto, --draft, --days, which it gives back: of a registry alone.
std::vector<cli::Option> takes_signing(RegistryCommand& command, SignWords& words);

/// Signs, and says what clients see of it and what waits.
int sign(SignWords& words, const RegistryCall& call);

}  // namespace kiln::registry
