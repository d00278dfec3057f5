// SPDX-License-Identifier: Apache-2.0
//
// kiln-build: `kiln build …`, `kiln pack …` and `kiln new …` run it. Its verbs are in this folder,
// all else is run_program's.
#include "build-matrix/cli/verbs.hpp"
#include "loader/cli/frame/program.hpp"

int main(int argc, char** argv) {
  using namespace kiln::build;  // NOLINT(google-build-using-namespace)
  return kiln::cli::run_program(
      {
          .name = "kiln build",
          .summary =
              "Builds kernel packages for every target of the matrix, one archive a variant.",
          .verbs = {{"new", "Write the folder of a package to start from", new_verb},
                    {"pack", "Make variants of binaries that exist", pack_verb},
                    {"step", "One step of a build, which calls it", {}, true},
                    {"step nvrtc", "One device source through NVRTC", nvrtc_step},
                    {"step launches", "The host code of a variant's launches", launches_step},
                    {"step images", "The source of a variant's images", images_step},
                    {"step pack", "One variant's library, inspected and packed", pack_step}},
          .declare = build_verb,
      },
      argc, argv);
}
