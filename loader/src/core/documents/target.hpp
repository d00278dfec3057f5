// SPDX-License-Identifier: Apache-2.0
//
// Target: the words in which a binary says what it needs of a machine, and those of kiln/host.hpp
// read back from text. A manifest states them, resolve compares them with a Host. Pure values, no
// I/O.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/host.hpp"

namespace kiln {

std::optional<Version> parse_version(std::string_view text);

/// "570.124.06" or "580.65": two or three numbers, the first of at least three digits, so that
/// CUDA's "12.4" is none.
bool is_driver_version(std::string_view text);
/// -1, 0 or 1: whether one driver's version comes before, as far as both have numbers. "570.124"
/// is every 570.124.x.
int compare_drivers(std::string_view left, std::string_view right);

std::optional<Arch> parse_arch(std::string_view text);  ///< uname's words: "x86_64", "aarch64"
std::optional<CpuLevel> parse_cpu_level(std::string_view text);
std::string cpu_level_names();  ///< what parse_cpu_level reads, for messages

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
