// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/compilers/toolchain.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <optional>
#include <vector>

#include "base/digest.hpp"
#include "base/draft.hpp"
#include "base/posix.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/base/process.hpp"
#include "build-matrix/compilers/nvrtc.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void missing(const std::string& what, const fs::path& prefix,
                          const std::string& component = "") {
  throw Error(ErrorCode::kBuild, "find the toolchain: " + what + " is not in " + prefix.string() +
                                     "; run 'ci/toolchains " +
                                     (component.empty() ? "" : component + " ") + prefix.string() +
                                     "' in Kiln's source, or name another folder in "
                                     "KILN_TOOLCHAINS");
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

/// CUTLASS names CCCL's headers "cccl/cuda/std/…" of some toolkits, and "cuda/std/…" of others.
Headers find_headers(const fs::path& prefix, const std::string& name) {
  const fs::path include = prefix / name / "include";
  const NamedFile pins = read_named_file(prefix / name / ".pins", 4096);
  const std::size_t version = pins.text.find("==");
  if (!fs::exists(include) || version == std::string::npos) {
    missing(name + "/include", prefix, name);
  }
  Headers headers{.folders = {include},
                  .version = pins.text.substr(version + 2, pins.text.find(' ') - version - 2)};
  if (fs::exists(include / name)) headers.folders.push_back(include / name);
  return headers;
}

TritonCompiler find_triton(const fs::path& prefix) {
  TritonCompiler compiler{.folder = find_python(prefix).parent_path(), .version = {}};
  if (compiler.folder.empty()) missing("triton", prefix, "triton");
  constexpr std::string_view kPin = "triton==";
  const std::string pins = read_file(compiler.folder / ".pins");
  const std::size_t at = pins.find(kPin);
  if (at == std::string::npos) missing("triton", prefix, "triton");
  const std::size_t begin = at + kPin.size();
  compiler.version = pins.substr(begin, pins.find(' ', begin) - begin);
  return compiler;
}

/// Sorted; the file itself, if it is one.
std::vector<fs::path> files_below(const fs::path& root) {
  if (fs::is_regular_file(root)) return {root};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

/// What the kernel says of each file.
std::string facts_of(const std::vector<fs::path>& files, bool& settled) {
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  const auto nanoseconds = [](const timespec& time) {
    return time.tv_sec * kNanoseconds + time.tv_nsec;
  };
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::string facts;
  for (const fs::path& file : files) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0) fail_file("look at", file, errno);
    if (nanoseconds(status.st_ctim) > nanoseconds(now) - 2 * kNanoseconds) settled = false;
    facts += file.string() + '\0';
    for (const std::uint64_t fact : {std::uint64_t{status.st_dev}, std::uint64_t{status.st_ino},
                                     static_cast<std::uint64_t>(status.st_size),
                                     static_cast<std::uint64_t>(nanoseconds(status.st_mtim)),
                                     static_cast<std::uint64_t>(nanoseconds(status.st_ctim))}) {
      facts += std::to_string(fact) + " ";
    }
  }
  return facts;
}

}  // namespace

fs::path find_python(const fs::path& prefix) {
  fs::path newest;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(prefix, failed)) {
    const fs::path python = entry.path() / "python3";
    const bool is_triton = entry.path().filename().string().starts_with("triton-");
    if (is_triton && fs::exists(python) && python > newest) newest = python;
  }
  return newest;
}

Toolchain find_toolchain(const fs::path& prefix, const std::set<Version>& toolkits,
                         const std::set<std::string>& headers, bool triton,
                         bool reads_device_code) {
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
  for (const std::string& name : headers) chain.headers[name] = find_headers(prefix, name);
  if (triton) chain.triton = find_triton(prefix);
  if (!toolkits.empty() || triton || reads_device_code) {
    chain.cuobjdump = prefix / "bin" / "cuobjdump";
    if (!fs::exists(chain.cuobjdump)) missing("bin/cuobjdump", prefix);
  }
  return chain;
}

void identify(Toolchain& toolchain, const fs::path& memos) {
  toolchain.zig_digest = tree_digest(toolchain.zig.parent_path(), memos);
  for (auto& [version, compiler] : toolchain.device) {
    compiler.digest = tree_digest(compiler.include, memos) + " " +
                      tree_digest(compiler.library.parent_path(), memos);
  }
  for (auto& [name, headers] : toolchain.headers) {
    headers.digest = tree_digest(headers.folders.front(), memos);
  }
  if (toolchain.triton) toolchain.triton->digest = tree_digest(toolchain.triton->folder, memos);
  if (!toolchain.cuobjdump.empty()) {
    toolchain.cuobjdump_digest = tree_digest(toolchain.cuobjdump.parent_path(), memos);
  }
}

std::string tree_digest(const fs::path& root, const fs::path& memos) {
  const std::vector<fs::path> files = files_below(root);
  bool settled = true;  // nothing changed so lately that a second change could have the same time
  const std::string facts = Digest::of(facts_of(files, settled)).hex();
  const fs::path memo = memos / Digest::of(root.string()).hex().substr(0, 16);
  if (const NamedFile known = read_named_file(memo, 4096); known.text.starts_with(facts + " ")) {
    return known.text.substr(facts.size() + 1);
  }
  std::string contents;
  for (const fs::path& file : files) {
    contents += digest_of_file(file).hex() + " " + file.lexically_relative(root).string() + '\0';
  }
  std::string digest = Digest::of(contents).hex();
  if (settled) write_file(memo, facts + " " + digest);
  return digest;
}

}  // namespace kiln::build
