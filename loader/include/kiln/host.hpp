// SPDX-License-Identifier: Apache-2.0
//
// Host: what a decision knew of the machine it was made for. Resolution holds one; Kiln fills it
// from the running machine. Pure values, no I/O.
#pragma once

#include "kiln/compiler.hpp"

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kiln {

/// A two-part version: CUDA "12.9", glibc "2.17", compute capability "9.0".
struct Version {
  int major = 0;
  int minor = 0;
  auto operator<=>(const Version&) const = default;
};
std::string to_string(Version version);

enum class Arch { kX86_64, kAarch64 };
std::string_view to_string(Arch arch);  ///< uname's words: "x86_64", "aarch64"

/// An instruction set level of one architecture; each has what those below it have. "x86-64" (1),
/// "x86-64-v2" to "x86-64-v4" of the psABI, "x86-64-v4-bf16" (5), which adds AVX512-BF16,
/// "x86-64-v4-amx" (6), which adds AMX-TILE and AMX-BF16; or "armv8-a" (1). A CPU with AMX whose
/// system does not grant it is said to have 4: there AVX512-BF16 is slow. Documents hold the words:
/// the numbers only order them.
struct CpuLevel {
  Arch arch = Arch::kX86_64;
  int level = 1;
  auto operator<=>(const CpuLevel&) const = default;
};
std::string to_string(CpuLevel level);

struct Gpu {
  int ordinal = 0;  ///< CUDA's, after CUDA_VISIBLE_DEVICES
  std::string name;
  Version capability;
};

struct Host {
  Arch arch = Arch::kX86_64;
  CpuLevel cpu;
  std::optional<Version> glibc;   ///< none on a machine without glibc (musl)
  std::optional<Version> driver;  ///< the newest CUDA version it supports; none without a driver
  /// The driver's own version, "570.124.06": that of NVIDIA's kernel module. Empty: not known.
  std::string driver_version = {};
  /// A driver is there, but not which GPUs it has: why it does not say so, and what to do.
  std::string driver_problem = {};
  std::vector<Gpu> gpus;
  bool gpus_asked = true;  ///< false: driver and GPUs were not looked at, as only the CPU counts
  std::vector<std::string> libraries;   ///< those of the sonames looked up that this machine has
  std::vector<std::string> absent;      ///< those of the sonames looked up that it does not have
  std::vector<std::string> overridden;  ///< the facts that came from KILN_OVERRIDE_*
  std::string origin = {};  ///< a file's name where the facts come from one; empty: this machine
};

}  // namespace kiln
