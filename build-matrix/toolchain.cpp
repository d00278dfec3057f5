// SPDX-License-Identifier: Apache-2.0
#include "toolchain.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "kiln/error.hpp"
#include "nvrtc.hpp"
#include "process.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void missing(const std::string& what, const fs::path& prefix) {
  throw Error(ErrorCode::kBuild, "find the toolchain: " + what + " is not in " + prefix.string() +
                                     "; run 'ci/toolchains " + prefix.string() + "'");
}

// libnvrtc.so or libnvrtc.so.12, not libnvrtc-builtins.so.12.9 nor libnvrtc.alt.so.12.
std::optional<fs::path> find_library(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename().string();
    if (name == "libnvrtc.so" || name.starts_with("libnvrtc.so.")) found.push_back(entry.path());
  }
  if (found.empty()) return std::nullopt;
  return *std::min_element(found.begin(), found.end());
}

DeviceCompiler describe(const fs::path& library, const fs::path& include) {
  if (!fs::exists(include / "cuda_fp16.h")) {
    throw Error(ErrorCode::kBuild, "find the toolchain: no cuda_fp16.h in " + include.string() +
                                       ", the headers of " + library.string());
  }
  return {.library = library, .include = include, .version = Nvrtc(library).compiler_version()};
}

}  // namespace

Toolchain find_toolchain(const fs::path& prefix, const std::set<Version>& toolkits) {
  Toolchain chain;
  chain.zig = prefix / "zig" / "zig";
  if (!fs::exists(chain.zig)) missing("zig/zig", prefix);
  const Finished zig = run_captured({chain.zig.string(), "version"});
  if (zig.status != 0) {
    throw Error(ErrorCode::kBuild, chain.zig.string() + " version failed: " + zig.output);
  }
  chain.zig_version = zig.output.substr(0, zig.output.find_first_of(" \r\n"));

  for (const Version toolkit : toolkits) {
    const std::string folder = "cuda-" + to_string(toolkit);
    const auto library = find_library(prefix / folder / "lib");
    if (!library) missing(folder + "/lib/libnvrtc.so", prefix);
    chain.device[toolkit] = describe(*library, prefix / folder / "include");
  }
  if (!toolkits.empty()) {
    chain.cuobjdump = prefix / "bin" / "cuobjdump";
    if (!fs::exists(chain.cuobjdump)) missing("bin/cuobjdump", prefix);
  }
  return chain;
}

}  // namespace kiln::build
