// SPDX-License-Identifier: Apache-2.0
//
// What the tests of this folder begin with: a machine without a GPU, and a registry folder that is
// empty, or has sample@1 for the CPU and for a Hopper.
#pragma once

#include <optional>
#include <vector>

#include "published.hpp"
#include "scratch.hpp"

namespace kiln::test {

struct MachineSetting {
  Scratch scratch;
  Published published{scratch / "registry"};
  Environment no_gpu{"KILN_OVERRIDE_SM", ""};
};

struct SampleSetting : MachineSetting {
  Environment no_lock{"KILN_LOCK", std::nullopt};
  Environment no_registry{"KILN_REGISTRY", std::nullopt};
  std::vector<Draft> drafts{cpu_draft(sample_library()), gpu_draft(sample_library())};
  Descriptor index = published.publish(drafts);
};

}  // namespace kiln::test
