// SPDX-License-Identifier: Apache-2.0
#include "documents/target.hpp"

#include <algorithm>
#include <array>

#include "base/number.hpp"

namespace kiln {

namespace {

/// Decimal digits alone, without a leading zero, at most 9999: each number has one spelling.
std::optional<int> parse_number(std::string_view text) {
  const std::optional<std::uint64_t> value = parse_decimal(text, 9999);
  if (!value) return {};
  return static_cast<int>(*value);
}

constexpr std::size_t kMostDriverParts = 3;

/// The numbers of "570.124.06", in which NVIDIA pads the last one. Empty for any other text.
std::vector<int> parse_driver(std::string_view text) {
  std::vector<int> numbers;
  while (true) {
    const std::string_view part = text.substr(0, text.find('.'));
    const std::optional<int> number =
        parse_number(part.size() == 2 && part.starts_with('0') ? part.substr(1) : part);
    if (!number || numbers.size() == kMostDriverParts) return {};
    numbers.push_back(*number);
    if (part.size() == text.size()) break;
    text.remove_prefix(part.size() + 1);
  }
  constexpr int kLowest = 100;  // of all that run CUDA 11 and later; CUDA's versions are below
  return numbers.size() < 2 || numbers[0] < kLowest ? std::vector<int>() : numbers;
}

/// The GPUs of SoCs. NVIDIA promises binary compatibility between minor revisions for discrete GPUs
/// only, and none between those and an SoC (CUDA C++ Programming Guide, "Binary Compatibility").
constexpr std::array kTegra = {Version{5, 3}, Version{6, 2},  Version{7, 2},
                               Version{8, 7}, Version{10, 1}, Version{11, 0}};

/// Which GPUs family-specific code runs on (PTX ISA, ".target": sm_100f and later).
struct FamilyMember {
  Version code;
  Version gpu;
};
constexpr std::array kFamilies = {
    FamilyMember{{10, 0}, {10, 0}}, FamilyMember{{10, 0}, {10, 3}}, FamilyMember{{10, 1}, {10, 1}},
    FamilyMember{{10, 3}, {10, 3}}, FamilyMember{{11, 0}, {11, 0}}, FamilyMember{{12, 0}, {12, 0}},
    FamilyMember{{12, 0}, {12, 1}}, FamilyMember{{12, 1}, {12, 1}},
};

/// A level that comes after the first release needs a `min_loader` that knows it: an older loader
/// then refuses the variant by that, and reads the others.
struct NamedLevel {
  std::string_view name;
  CpuLevel level;
};
constexpr std::array kCpuLevels = {
    NamedLevel{"x86-64", {Arch::kX86_64, 1}},
    NamedLevel{"x86-64-v2", {Arch::kX86_64, 2}},
    NamedLevel{"x86-64-v3", {Arch::kX86_64, 3}},
    NamedLevel{"x86-64-v4", {Arch::kX86_64, 4}},
    NamedLevel{"x86-64-v4-bf16", {Arch::kX86_64, 5}},
    NamedLevel{"x86-64-v4-amx", {Arch::kX86_64, 6}},
    NamedLevel{"armv8-a", {Arch::kAarch64, 1}},
};

bool is_tegra(Version capability) {
  return std::find(kTegra.begin(), kTegra.end(), capability) != kTegra.end();
}

bool in_family(Version code, Version gpu) {
  return std::any_of(kFamilies.begin(), kFamilies.end(), [&](const FamilyMember& member) {
    return member.code == code && member.gpu == gpu;
  });
}

}  // namespace

std::optional<Version> parse_version(std::string_view text) {
  const std::size_t dot = text.find('.');
  if (dot == std::string_view::npos) return {};
  const std::optional<int> major = parse_number(text.substr(0, dot));
  const std::optional<int> minor = parse_number(text.substr(dot + 1));
  if (!major || !minor) return {};
  return Version{*major, *minor};
}

std::string to_string(Version version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor);
}

bool is_driver_version(std::string_view text) {
  return !parse_driver(text).empty();
}

int compare_drivers(std::string_view left, std::string_view right) {
  const std::vector<int> ours = parse_driver(left);
  const std::vector<int> theirs = parse_driver(right);
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    if (ours[i] != theirs[i]) return ours[i] < theirs[i] ? -1 : 1;
  }
  return 0;
}

std::optional<Arch> parse_arch(std::string_view text) {
  if (text == "x86_64") return Arch::kX86_64;
  if (text == "aarch64") return Arch::kAarch64;
  return {};
}

std::string_view to_string(Arch arch) {
  return arch == Arch::kX86_64 ? "x86_64" : "aarch64";
}

std::optional<CpuLevel> parse_cpu_level(std::string_view text) {
  const auto* const found = std::ranges::find(kCpuLevels, text, &NamedLevel::name);
  if (found == kCpuLevels.end()) return {};
  return found->level;
}

std::string cpu_level_names() {
  std::string names;
  for (const NamedLevel& each : kCpuLevels) {
    if (!names.empty()) names += &each == &kCpuLevels.back() ? " or " : ", ";
    names += each.name;
  }
  return names;
}

std::string to_string(CpuLevel level) {
  const auto* const found = std::ranges::find(kCpuLevels, level, &NamedLevel::level);
  return std::string(found == kCpuLevels.end() ? "unknown" : found->name);
}

std::optional<DeviceCode> parse_device_code(std::string_view text) {
  DeviceCode code;
  if (text.starts_with("sm_")) {
    text.remove_prefix(3);
  } else if (text.starts_with("compute_")) {
    text.remove_prefix(8);
    code.kind = DeviceCode::Kind::kPtx;
  } else {
    return {};
  }
  if (text.ends_with('a') || text.ends_with('f')) {
    code.suffix = text.back();
    text.remove_suffix(1);
  }
  // The last digit is the minor revision: sm_90 is 9.0, sm_121 is 12.1.
  const std::optional<int> number = parse_number(text);
  if (!number || *number < 10 || *number > 999) return {};
  code.capability = {*number / 10, *number % 10};
  return code;
}

std::string to_string(const DeviceCode& code) {
  std::string text = code.kind == DeviceCode::Kind::kSass ? "sm_" : "compute_";
  text += std::to_string(code.capability.major * 10 + code.capability.minor);
  if (code.suffix != 0) text += code.suffix;
  return text;
}

bool covers(const DeviceCode& code, Version capability) {
  if (code.capability == capability) return true;
  if (code.suffix == 'a') return false;
  if (code.suffix == 'f') return in_family(code.capability, capability);
  if (code.kind == DeviceCode::Kind::kPtx) return code.capability < capability;
  if (is_tegra(code.capability) || is_tegra(capability)) return false;
  return code.capability.major == capability.major && code.capability.minor < capability.minor;
}

}  // namespace kiln
