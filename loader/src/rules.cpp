// SPDX-License-Identifier: Apache-2.0
#include "rules.hpp"

#include <algorithm>
#include <array>
#include <tuple>

#include "kiln/abi.h"
#include "requires.hpp"

namespace kiln {

namespace {

using Detail = std::optional<std::string>;
using Rule = Detail (*)(const Variant&, const Fit&, const Question&);

std::string codes_of(const Variant& variant) {
  std::string text;
  for (const DeviceCode& code : variant.needs.device_code) {
    text.append(text.empty() ? "" : " ").append(to_string(code));
  }
  return text;
}

/// The lowest driver that runs code of this kind from this toolkit. Machine code runs on every
/// driver of the toolkit's major version ("minor version compatibility"); PTX of a newer toolkit is
/// refused by the driver's compiler (CUDA_ERROR_UNSUPPORTED_PTX_VERSION).
Version lowest_driver(const Needs& needs, DeviceCode::Kind kind) {
  const Version toolkit = needs.toolkit.value_or(Version{});
  const Version by_toolkit = kind == DeviceCode::Kind::kPtx ? toolkit : Version{toolkit.major, 0};
  return std::max(by_toolkit, needs.min_driver.value_or(Version{}));
}

Fit::Kind kind_of(const DeviceCode& code, Version capability) {
  if (code.kind == DeviceCode::Kind::kPtx) return Fit::Kind::kPtx;
  if (code.suffix == 'a') return Fit::Kind::kExact;
  if (code.suffix == 'f') return Fit::Kind::kFamily;
  return code.capability == capability ? Fit::Kind::kSameSm : Fit::Kind::kLowerMinor;
}

/// Code that runs on this GPU is of its capability or a lower one: the highest is the closest.
auto code_key(const Fit& fit) {
  return std::tuple(fit.kind, -fit.code.capability.major, -fit.code.capability.minor);
}

// --- the rules, in the order of Refusal; each says what is needed and what was found

Detail loader_rule(const Variant& variant, const Fit&, const Question&) {
  if (!needs_newer_loader(variant.requires_.min_loader)) return {};
  return "needs kiln >= " + variant.requires_.min_loader + ", this is " KILN_VERSION;
}

Detail abi_rule(const Variant& variant, const Fit&, const Question&) {
  if (variant.requires_.abi == KILN_ABI_MAJOR) return {};
  return "has package ABI " + std::to_string(variant.requires_.abi) + ", this kiln loads " +
         std::to_string(KILN_ABI_MAJOR);
}

Detail arch_rule(const Variant& variant, const Fit&, const Question& question) {
  const Arch arch = variant.needs.cpu.arch;
  if (arch == question.host->arch) return {};
  return "needs " + std::string(to_string(arch)) + ", this machine is " +
         std::string(to_string(question.host->arch));
}

Detail glibc_rule(const Variant& variant, const Fit&, const Question& question) {
  const std::optional<Version>& found = question.host->glibc;
  if (found && *found >= variant.needs.glibc) return {};
  return "needs glibc >= " + to_string(variant.needs.glibc) + ", this machine has " +
         (found ? to_string(*found) : "none");
}

Detail cpu_rule(const Variant& variant, const Fit&, const Question& question) {
  if (variant.needs.cpu.level <= question.host->cpu.level) return {};
  return "needs a CPU of level " + to_string(variant.needs.cpu) + ", this one is " +
         to_string(question.host->cpu);
}

Detail device_rule(const Variant& variant, const Fit&, const Question& question) {
  if (variant.needs.is_cpu() == (question.gpu == nullptr)) return {};
  if (variant.needs.is_cpu()) {
    return "runs on the CPU: ask for it with --device cpu (.device = kiln::Device::cpu())";
  }
  return question.host->gpus.empty() ? "needs a GPU, this machine shows none"
                                     : "needs a GPU, the CPU was asked for";
}

Detail driver_rule(const Variant& variant, const Fit& fit, const Question& question) {
  if (variant.needs.is_cpu() || question.gpu == nullptr) return {};
  const std::optional<Version>& found = question.host->driver;
  const std::string has =
      found ? ", this machine has " + to_string(*found) : ", this machine has no NVIDIA driver";
  const Version lowest = lowest_driver(variant.needs, DeviceCode::Kind::kSass);
  if (!found || *found < lowest) return "needs driver CUDA >= " + to_string(lowest) + has;
  if (fit.kind != Fit::Kind::kNone) return {};
  // The driver runs this toolkit's machine code, but none is for this GPU: PTX may be.
  const std::optional<Version> needed = driver_needed(variant, question.gpu->capability);
  if (!needed) return {};
  return "its PTX needs driver CUDA >= " + to_string(*needed) + has;
}

Detail code_rule(const Variant& variant, const Fit& fit, const Question& question) {
  if (variant.needs.is_cpu() || question.gpu == nullptr || fit.kind != Fit::Kind::kNone) return {};
  if (driver_needed(variant, question.gpu->capability)) return {};  // driver_rule's to refuse
  const std::string gpu = "GPU " + std::to_string(question.gpu->ordinal) +
                          " has compute capability " + to_string(question.gpu->capability);
  if (variant.needs.device_code.size() != 1) return "has " + codes_of(variant) + "; " + gpu;
  const DeviceCode& code = variant.needs.device_code.front();
  const std::string capability = to_string(code.capability);
  std::string runs_on =
      " runs on " + std::to_string(code.capability.major) + ".x from " + capability;
  if (code.suffix == 'a') runs_on = " runs on " + capability + " only";
  if (code.suffix == 'f') runs_on = " runs on the family of " + capability;
  if (code.suffix == 0 && code.kind == DeviceCode::Kind::kPtx) runs_on = " needs >= " + capability;
  return to_string(code) + runs_on + "; " + gpu;
}

Detail library_rule(const Variant& variant, const Fit&, const Question& question) {
  const std::vector<std::string>& present = question.host->libraries;
  std::string missing;
  for (const std::string& soname : variant.needs.libraries) {
    if (std::find(present.begin(), present.end(), soname) != present.end()) continue;
    missing += (missing.empty() ? "" : ", ") + soname;
  }
  if (missing.empty()) return {};
  return "needs " + missing + ", which the dynamic linker does not find";
}

Detail policy_rule(const Variant& variant, const Fit& fit, const Question& question) {
  const Selection& selection = *question.selection;
  if (!selection.variant.empty() && variant.id != selection.variant) {
    return "fits, but " + selection.variant + " was asked for";
  }
  if (fit.kind == Fit::Kind::kPtx && !selection.allow_jit) {
    return "has only PTX for this GPU (" + to_string(fit.code) + "), and JIT is not allowed";
  }
  return {};
}

struct NamedRule {
  Refusal refusal;
  Rule rule;
};
constexpr std::array kRules = {
    NamedRule{Refusal::kLoaderTooOld, loader_rule}, NamedRule{Refusal::kAbi, abi_rule},
    NamedRule{Refusal::kArch, arch_rule},           NamedRule{Refusal::kGlibc, glibc_rule},
    NamedRule{Refusal::kCpuLevel, cpu_rule},        NamedRule{Refusal::kDevice, device_rule},
    NamedRule{Refusal::kDriver, driver_rule},       NamedRule{Refusal::kNoDeviceCode, code_rule},
    NamedRule{Refusal::kLibrary, library_rule},     NamedRule{Refusal::kPolicy, policy_rule},
};

}  // namespace

std::optional<Version> driver_needed(const Variant& variant, Version capability) {
  std::optional<Version> lowest;
  for (const DeviceCode& code : variant.needs.device_code) {
    if (!covers(code, capability)) continue;
    const Version needed = lowest_driver(variant.needs, code.kind);
    if (!lowest || needed < *lowest) lowest = needed;
  }
  return lowest;
}

Fit best_fit(const Variant& variant, const Question& question) {
  if (variant.needs.is_cpu()) return {.kind = Fit::Kind::kCpu};
  Fit best;
  if (question.gpu == nullptr || !question.host->driver) return best;
  for (const DeviceCode& code : variant.needs.device_code) {
    if (!covers(code, question.gpu->capability)) continue;
    if (*question.host->driver < lowest_driver(variant.needs, code.kind)) continue;
    const Fit fit{kind_of(code, question.gpu->capability), code};
    if (std::tuple(code_key(fit), fit.code) < std::tuple(code_key(best), best.code)) best = fit;
  }
  return best;
}

std::optional<Obstacle> first_obstacle(const Variant& variant, const Fit& fit,
                                       const Question& question) {
  for (const auto& [refusal, rule] : kRules) {
    if (Detail detail = rule(variant, fit, question)) return Obstacle{refusal, std::move(*detail)};
  }
  return {};
}

std::vector<Obstacle> all_obstacles(const Variant& variant, const Fit& fit,
                                    const Question& question) {
  std::vector<Obstacle> obstacles;
  for (const auto& [refusal, rule] : kRules) {
    if (Detail detail = rule(variant, fit, question)) {
      obstacles.push_back({refusal, std::move(*detail)});
      if (!variant.unread.is_null()) break;  // what else it needs is not known
    }
  }
  return obstacles;
}

bool ranks_before(const Variant& left, const Fit& left_fit, const Variant& right,
                  const Fit& right_fit, const Question& question) {
  const auto key = [&](const Variant& variant, const Fit& fit) {
    const Version toolkit = variant.needs.toolkit.value_or(Version{});
    const bool newer_than_driver = question.host->driver && toolkit > *question.host->driver;
    return std::tuple(code_key(fit), newer_than_driver, -toolkit.major, -toolkit.minor,
                      -variant.needs.cpu.level);
  };
  const auto left_key = key(left, left_fit);
  const auto right_key = key(right, right_fit);
  if (left_key != right_key) return left_key < right_key;
  return std::tie(left.id, left.manifest.digest) < std::tie(right.id, right.manifest.digest);
}

}  // namespace kiln
