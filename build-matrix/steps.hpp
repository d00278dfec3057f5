// SPDX-License-Identifier: Apache-2.0
//
// Steps: what execute calls kiln-build back for: one device source through NVRTC, the images'
// source, and one variant's library inspected and packed. Each reads files and writes files, and
// throws Error(kBuild) with the step's name and its subject.
#pragma once

namespace CLI {
class App;
}

namespace kiln::build {

/// Adds the hidden command "step", with one command for each. Parsing one runs it.
void add_steps(CLI::App& app);

}  // namespace kiln::build
