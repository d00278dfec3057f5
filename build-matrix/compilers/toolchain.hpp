// SPDX-License-Identifier: Apache-2.0
//
// Toolchain: where the compilers of one build are, and which they are exactly. Filled from a prefix
// that ci/toolchains made. Only what the chosen variants need is looked for. Throws Error(kBuild)
// with what to run.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "documents/target.hpp"

namespace kiln::build {

struct DeviceCompiler {
  std::filesystem::path library;  ///< libnvrtc.so.12
  std::filesystem::path include;  ///< cuda_fp16.h and what it includes
  std::string version;            ///< "12.9.86"
  std::string digest = {};        ///< of the toolkit's folder, as are the next ones
};

/// Headers that device sources include, of no toolkit.
struct Headers {
  std::vector<std::filesystem::path> folders;  ///< where their names are looked for
  std::string version;                         ///< "13.0.85", as it is pinned
  std::string digest = {};
};

/// The wheel of Triton, which is for one version of Python.
struct TritonCompiler {
  std::filesystem::path folder;  ///< PREFIX/triton-3.11: the packages, and python3
  std::string version;           ///< "3.9.0"
  std::string digest = {};
};

struct Toolchain {
  std::map<Version, DeviceCompiler> device;     ///< by toolkit: 12.9
  std::map<std::string, Headers> headers = {};  ///< by component of ci/toolchains: "cccl"
  std::optional<TritonCompiler> triton = {};
  std::filesystem::path zig;
  std::string zig_version;
  std::filesystem::path cuobjdump;  ///< empty where no variant has device code
  std::string zig_digest = {};
  std::string cuobjdump_digest = {};
};

/// The Python that came with Triton's wheel, which is there on request; the newest, if the prefix
/// was filled with several. Empty: there is none.
std::filesystem::path find_python(const std::filesystem::path& prefix);

/// Without digests. `triton`: whether a variant has images of Triton; `reads_device_code`: or code
/// that was compiled elsewhere.
Toolchain find_toolchain(const std::filesystem::path& prefix, const std::set<Version>& toolkits,
                         const std::set<std::string>& headers = {}, bool triton = false,
                         bool reads_device_code = false);

/// Fills in the digests, with tree_digest.
void identify(Toolchain& toolchain, const std::filesystem::path& memos);

/// The digest of all names and bytes below a folder, or of one file. To read 700 MB of compilers
/// takes seconds, so `memos` (a folder) keeps it. It counts while each file has the same inode,
/// size and times; the time of the last change cannot be set by a program.
std::string tree_digest(const std::filesystem::path& root, const std::filesystem::path& memos);

}  // namespace kiln::build
