// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/steps/trial.hpp"

#include <algorithm>
#include <ostream>

#include "base/digest.hpp"
#include "base/process.hpp"
#include "base/shell_word.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/base/process.hpp"
#include "build-matrix/steps/step.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

/// The digest of each descriptor below a package's folder: they name all that was built.
std::string state_of(const fs::path& folder) {
  std::vector<fs::path> descriptors;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path descriptor = entry.path() / "descriptor.json";
    if (fs::is_regular_file(descriptor)) descriptors.push_back(descriptor);
  }
  std::ranges::sort(descriptors);
  std::string state;
  for (const fs::path& path : descriptors) {
    state +=
        Digest::of(read_file(path)).hex() + " " + path.lexically_relative(folder).string() + "\n";
  }
  return state;
}

void publish(const fs::path& folder, const fs::path& registry) {
  const fs::path program = own_program("build --try").parent_path() / "kiln-registry";
  if (!fs::exists(program)) {
    throw Error(ErrorCode::kBuild, "build --try: there is no " + program.string() +
                                       ", which publishes; build Kiln's tools, all of them");
  }
  const Finished finished =
      run_captured({program.string(), "publish", folder.string(), "--registry", registry.string(),
                    "--allow-untested", "*"});
  if (finished.status != 0) {
    throw Error(ErrorCode::kBuild, "build --try: kiln-registry publish failed: " + finished.output);
  }
}

}  // namespace

void offer_for_trial(const std::vector<Job>& jobs, const fs::path& out, std::ostream& progress) {
  const fs::path root = out / ".try";
  const fs::path registry = root / "registry";
  std::string state;
  for (const Job& job : jobs) {
    state += job.package.name + "\n" + state_of(out / job.package.name);
  }
  const fs::path note = root / "published";  // written last
  std::error_code failed;
  if (!fs::is_regular_file(note, failed) || read_file(note) != state) {
    fs::remove_all(root);
    for (const Job& job : jobs) publish(out / job.package.name, registry);
    write_file(note, state);
  }
  progress << "To load what was built, and nothing older:\n  export KILN_REGISTRY="
           << shell_word(registry.string()) << " KILN_UNSIGNED=" << shell_word(registry.string())
           << " KILN_CACHE=" << shell_word((root / "cache").string()) << "\n";
}

}  // namespace kiln::build
