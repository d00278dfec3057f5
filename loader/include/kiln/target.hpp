// SPDX-License-Identifier: Apache-2.0
//
// Target: the words in which a machine and a binary are compared. Pure values, no I/O; `probe`
// fills a Host from the running machine, a manifest states what a variant needs, `resolve` compares
// the two.
#pragma once

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
std::optional<Version> parse_version(std::string_view text);
std::string to_string(Version version);

enum class Arch { kX86_64, kAarch64 };
std::optional<Arch> parse_arch(std::string_view text);  ///< uname's words: "x86_64", "aarch64"
std::string_view to_string(Arch arch);

/// An instruction set level of one architecture: "x86-64" (1), "x86-64-v2".."x86-64-v4", or
/// "armv8-a" (1).
struct CpuLevel {
  Arch arch = Arch::kX86_64;
  int level = 1;
  auto operator<=>(const CpuLevel&) const = default;
};
std::optional<CpuLevel> parse_cpu_level(std::string_view text);
std::string to_string(CpuLevel level);

/// One piece of device code: machine code ("sm_90", "sm_90a", "sm_100f") or PTX ("compute_80").
struct DeviceCode {
  enum class Kind { kSass, kPtx };
  Kind kind = Kind::kSass;
  Version capability;
  char suffix = 0;  ///< 0, 'a' (this capability exactly) or 'f' (this family)
  auto operator<=>(const DeviceCode&) const = default;
};
std::optional<DeviceCode> parse_device_code(std::string_view text);
std::string to_string(const DeviceCode& code);

/// Whether machine code runs on a GPU of this capability (PTX also depends on the driver: see
/// resolve).
bool covers(const DeviceCode& code, Version capability);

struct Gpu {
  int ordinal = 0;  ///< CUDA's, after CUDA_VISIBLE_DEVICES
  std::string name;
  Version capability;
};

/// What resolve may know of a machine.
struct Host {
  Arch arch = Arch::kX86_64;
  CpuLevel cpu;
  std::optional<Version> glibc;  ///< none on a machine without glibc (musl)
  std::optional<Version>
      driver;  ///< the newest CUDA version that the driver supports; none without one
  std::vector<Gpu> gpus;
  bool gpus_asked = true;  ///< false: driver and GPUs were not looked at, as only the CPU counts
  std::vector<std::string> libraries;   ///< those of the sonames looked up that this machine has
  std::vector<std::string> absent;      ///< those of the sonames looked up that it does not have
  std::vector<std::string> overridden;  ///< the facts that came from KILN_OVERRIDE_*
  std::string origin =
      {};  ///< where the facts come from: a file's name; empty: the running machine
};

/// The facts as a document, schema "kiln.host/1", to resolve for a machine that is elsewhere:
/// `kiln host --json` writes it, Request::host takes what parse_host returns. `origin` names the
/// document in errors and in tables. Throws kIntegrity for what breaks the format, kUpgrade for a
/// document of a newer Kiln.
Host parse_host(std::string_view document, std::string_view origin);
std::string serialize_host(const Host& host);

/// What a variant needs of a machine, and what it holds.
struct Needs {
  CpuLevel cpu;
  Version glibc;
  std::optional<Version> toolkit;     ///< CUDA toolkit that compiled it; none for a CPU variant
  std::optional<Version> min_driver;  ///< lowest driver, as a CUDA version; set where toolkit is
  std::vector<DeviceCode> device_code;
  std::vector<std::string> libraries;  ///< sonames it looks up at run time
  bool is_cpu() const { return !toolkit.has_value(); }
};

}  // namespace kiln
