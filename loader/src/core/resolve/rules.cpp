// SPDX-License-Identifier: Apache-2.0
#include "resolve/rules.hpp"

#include <algorithm>
#include <tuple>

#include "base/join.hpp"
#include "documents/needed_loader.hpp"
#include "kiln/abi.h"

namespace kiln {

namespace {

std::string codes_of(const Variant& variant) {
  return join(variant.needs.device_code, " ",
              [](const DeviceCode& code) { return to_string(code); });
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

/// Smaller is better.
auto code_key(const Fit& fit) {
  return std::tuple(fit.kind, -fit.code.capability.major, -fit.code.capability.minor);
}

// --- the rules, in the order of Refusal: what must hold, and what is needed and was found

bool loader_holds(const Variant& variant, const Fit&, const Question&) {
  return !needs_newer_loader(variant.requires_.min_loader);
}
std::string describe_loader(const Variant& variant, const Fit&, const Question&) {
  return "needs kiln >= " + variant.requires_.min_loader + ", this is " KILN_VERSION;
}

bool abi_holds(const Variant& variant, const Fit&, const Question&) {
  return variant.requires_.abi == KILN_ABI_MAJOR;
}
std::string describe_abi(const Variant& variant, const Fit&, const Question&) {
  return "has package ABI " + std::to_string(variant.requires_.abi) + ", this kiln loads " +
         std::to_string(KILN_ABI_MAJOR);
}

bool arch_holds(const Variant& variant, const Fit&, const Question& question) {
  return variant.needs.cpu.arch == question.host->arch;
}
std::string describe_arch(const Variant& variant, const Fit&, const Question& question) {
  return "needs " + std::string(to_string(variant.needs.cpu.arch)) + ", this machine is " +
         std::string(to_string(question.host->arch));
}

bool glibc_holds(const Variant& variant, const Fit&, const Question& question) {
  const std::optional<Version>& found = question.host->glibc;
  return found && *found >= variant.needs.glibc;
}
std::string describe_glibc(const Variant& variant, const Fit&, const Question& question) {
  const std::optional<Version>& found = question.host->glibc;
  return "needs glibc >= " + to_string(variant.needs.glibc) + ", this machine has " +
         (found ? to_string(*found) : "none");
}

bool cpu_holds(const Variant& variant, const Fit&, const Question& question) {
  return variant.needs.cpu.level <= question.host->cpu.level;
}
std::string describe_cpu(const Variant& variant, const Fit&, const Question& question) {
  return "needs a CPU of level " + to_string(variant.needs.cpu) + ", this one is " +
         to_string(question.host->cpu);
}

bool device_holds(const Variant& variant, const Fit&, const Question& question) {
  return question.no_gpu.empty() && variant.needs.is_cpu() == question.gpus.empty();
}
std::string describe_device(const Variant& variant, const Fit& fit, const Question& question) {
  if (device_holds(variant, fit, question)) {
    return variant.needs.is_cpu() ? "runs on the CPU, as is asked for"
                                  : "runs on a GPU, as is asked for";
  }
  if (variant.needs.is_cpu()) {
    return "runs on the CPU: ask for it with --device cpu (.device = kiln::Device::cpu())";
  }
  if (!question.no_gpu.empty()) {
    return "needs " + to_string(question.device) +
           (question.host->driver_problem.empty() ? ", this machine does not have it"
                                                  : ", the driver does not say which GPUs it has");
  }
  return question.host->gpus_asked && question.host->gpus.empty()
             ? "needs a GPU, this machine shows none"
             : "needs a GPU, the CPU was asked for";
}

/// The driver that machine code needs or, where none of it is for these GPUs, the PTX that is.
struct DriverNeed {
  Version lowest;
  bool by_ptx = false;
};
DriverNeed driver_need(const Variant& variant, const Fit& fit, const Question& question) {
  DriverNeed need{lowest_driver(variant.needs, DeviceCode::Kind::kSass)};
  const std::optional<Version>& found = question.host->driver;
  if (!found || *found < need.lowest || fit.kind != Fit::Kind::kNone) return need;
  for (const Gpu* gpu : question.gpus) {
    const std::optional<Version> lowest = driver_needed(variant, gpu->capability);
    if (lowest && *lowest > need.lowest) need = {*lowest, true};
  }
  return need;
}
bool driver_holds(const Variant& variant, const Fit& fit, const Question& question) {
  if (variant.needs.is_cpu() || question.gpus.empty()) return true;
  const std::optional<Version>& found = question.host->driver;
  return found && *found >= driver_need(variant, fit, question).lowest;
}
std::string describe_driver(const Variant& variant, const Fit& fit, const Question& question) {
  if (variant.needs.is_cpu()) return "needs no driver";
  const DriverNeed need = driver_need(variant, fit, question);
  if (question.gpus.empty()) {
    return "on a GPU it needs driver CUDA >= " + to_string(need.lowest);
  }
  const std::optional<Version>& found = question.host->driver;
  return (need.by_ptx ? "its PTX needs driver CUDA >= " : "needs driver CUDA >= ") +
         to_string(need.lowest) +
         (found ? ", this machine has " + to_string(*found)
                : ", this machine has no NVIDIA driver");
}

bool code_holds(const Variant& variant, const Fit& fit, const Question& question) {
  // Where a newer driver would do, driver_holds refuses.
  return variant.needs.is_cpu() || fit.kind != Fit::Kind::kNone ||
         find_uncovered(variant, question) == nullptr;
}
std::string describe_code(const Variant& variant, const Fit& fit, const Question& question) {
  if (fit.kind != Fit::Kind::kNone) return describe_fit(variant, fit, question);
  const Gpu* const gpu = find_uncovered(variant, question);
  if (question.gpus.empty()) return "on a GPU it has " + codes_of(variant);
  if (gpu == nullptr) return "has " + codes_of(variant);
  const std::string found = "; GPU " + std::to_string(gpu->ordinal) + " has compute capability " +
                            to_string(gpu->capability);
  if (variant.needs.device_code.size() != 1) return "has " + codes_of(variant) + found;
  const DeviceCode& code = variant.needs.device_code.front();
  const std::string on = runs_on(code);
  return to_string(code) + (on.starts_with(">=") ? " needs " : " runs on ") + on + found;
}

bool is_present(const std::string& soname, const Question& question) {
  const std::vector<std::string>& present = question.host->libraries;
  return std::find(present.begin(), present.end(), soname) != present.end();
}
bool library_holds(const Variant& variant, const Fit&, const Question& question) {
  const std::vector<std::string>& needed = variant.needs.libraries;
  return std::all_of(needed.begin(), needed.end(),
                     [&](const std::string& soname) { return is_present(soname, question); });
}
std::string describe_library(const Variant& variant, const Fit&, const Question& question) {
  std::vector<std::string> missing;
  std::string why = ", which the dynamic linker does not find";
  const std::vector<std::string>& absent = question.host->absent;
  for (const std::string& soname : variant.needs.libraries) {
    if (is_present(soname, question)) continue;
    missing.push_back(soname);
    if (std::find(absent.begin(), absent.end(), soname) == absent.end()) {
      why = ", which was not looked for: the variant is refused before that";
    }
  }
  if (variant.needs.libraries.empty()) return "needs no library";
  if (!missing.empty()) return "needs " + join(missing) + why;
  return "needs " + join(variant.needs.libraries) + ", which the dynamic linker finds";
}

// --- what the caller or the settings rule out: one row each, with what would lift it

/// A GPU on which the variant was not tested, where it must have been; else null.
const Gpu* find_untested(const Variant& variant, const Question& question) {
  if (question.selection->tested != Tested::kHere) return nullptr;
  for (const Gpu* gpu : question.gpus) {
    if (std::ranges::find(variant.tested_on, gpu->name) == variant.tested_on.end()) return gpu;
  }
  return nullptr;
}

/// A failed check of the variant on one of these GPUs or, of a CPU's, on this CPU; else null.
const FailedHere* find_failed(const Variant& variant, const Question& question) {
  if (question.selection->tested == Tested::kAny) return nullptr;
  const std::vector<FailedHere>& all = question.selection->failed_here;
  const auto found = std::ranges::find_if(all, [&](const FailedHere& each) {
    if (each.manifest != variant.manifest.digest) return false;
    if (variant.needs.is_cpu()) return each.hardware.empty();
    return std::ranges::any_of(question.gpus,
                               [&](const Gpu* gpu) { return gpu->name == each.hardware; });
  });
  return found == all.end() ? nullptr : &*found;
}

/// The first advisory that speaks of the variant on these GPUs; else null.
const Advisory* find_advisory(const Variant& variant, const Question& question) {
  const std::vector<Advisory>& all = question.selection->advisories;
  const std::vector<const Gpu*> none;
  const auto found = std::ranges::find_if(all, [&](const Advisory& each) {
    return names_variant(each, variant.id, variant.manifest.digest) &&
           speaks_of_machine(each, variant.needs.is_cpu() ? none : question.gpus, *question.host);
  });
  return found == all.end() ? nullptr : &*found;
}

struct Policy {
  bool (*forbids)(const Variant&, const Fit&, const Question&);
  std::string (*describe)(const Variant&, const Fit&, const Question&);
  const char* remedy;
};

const Policy kPolicies[] = {
    {[](const Variant& variant, const Fit&, const Question& question) {
       return is_denied(variant, question);
     },
     [](const Variant&, const Fit&, const Question&) -> std::string {
       return "fits, but it is on the deny list";
     },
     "take it off the deny list, if you trust it after all"},
    {[](const Variant& variant, const Fit&, const Question& question) {
       return find_advisory(variant, question) != nullptr;
     },
     [](const Variant& variant, const Fit&, const Question& question) {
       return "fits, but its publisher warns of it: " +
              text_for(*find_advisory(variant, question), *question.host);
     },
     "take a version that it does not speak of; if you know better, accept it "
     "(\"accept_advisories\" in the settings)"},
    {[](const Variant& variant, const Fit&, const Question& question) {
       const std::string& pinned = question.selection->variant;
       return !pinned.empty() && variant.id != pinned;
     },
     [](const Variant&, const Fit&, const Question& question) {
       return "fits, but " + question.selection->variant + " was asked for";
     },
     "ask for it (--variant, .variant), or for none"},
    {[](const Variant&, const Fit& fit, const Question& question) {
       return fit.kind == Fit::Kind::kPtx && !question.selection->allow_jit;
     },
     [](const Variant&, const Fit& fit, const Question&) {
       return "has only PTX for this GPU (" + to_string(fit.code) + "), and JIT is not allowed";
     },
     "allow JIT (drop --no-jit, .allow_jit = true)"},
    {[](const Variant& variant, const Fit&, const Question& question) {
       return find_failed(variant, question) != nullptr;
     },
     [](const Variant& variant, const Fit&, const Question& question) {
       return "fits, but its check failed here: " + find_failed(variant, question)->text;
     },
     "run its check again"},
    {[](const Variant& variant, const Fit&, const Question& question) {
       return question.selection->tested != Tested::kAny && variant.tested_on.empty() &&
              find_failed(variant, question) == nullptr;
     },
     [](const Variant&, const Fit&, const Question&) -> std::string {
       return "fits, but it is untested, and the settings ask for tested variants";
     },
     "run its check on that machine ('kiln test'), or take untested ones too "
     "(\"tested\": \"any\" in the settings)"},
    {[](const Variant& variant, const Fit&, const Question& question) {
       return find_untested(variant, question) != nullptr &&
              find_failed(variant, question) == nullptr;
     },
     [](const Variant& variant, const Fit&, const Question& question) {
       return "fits, but it was not tested on " + find_untested(variant, question)->name + " (" +
              variant.tested + "), as the settings ask";
     },
     "run its check on that machine ('kiln test'), or take what was tested on other GPUs "
     "(\"tested\": \"somewhere\" in the settings)"},
};

const Policy* first_forbidding(const Variant& variant, const Fit& fit, const Question& question) {
  const auto* const found = std::ranges::find_if(
      kPolicies, [&](const Policy& each) { return each.forbids(variant, fit, question); });
  return found == std::ranges::end(kPolicies) ? nullptr : found;
}

bool policy_holds(const Variant& variant, const Fit& fit, const Question& question) {
  return first_forbidding(variant, fit, question) == nullptr;
}
std::string describe_policy(const Variant& variant, const Fit& fit, const Question& question) {
  const Policy* const found = first_forbidding(variant, fit, question);
  return found == nullptr ? "the caller rules nothing out that it needs"
                          : found->describe(variant, fit, question);
}

/// The best piece for one GPU.
Fit fit_one(const Variant& variant, const Gpu& gpu, Version driver) {
  Fit best;
  for (const DeviceCode& code : variant.needs.device_code) {
    if (!covers(code, gpu.capability)) continue;
    if (driver < lowest_driver(variant.needs, code.kind)) continue;
    const Fit fit{kind_of(code, gpu.capability), code};
    if (std::tuple(code_key(fit), fit.code) < std::tuple(code_key(best), best.code)) best = fit;
  }
  return best;
}

int number(Version version) {
  return version.major * 10000 + version.minor;  // each part has at most four digits
}

}  // namespace

std::string runs_on(const DeviceCode& code) {
  const std::string capability = to_string(code.capability);
  if (code.suffix == 'a') return capability + " only";
  if (code.suffix == 'f') return "the family of " + capability;
  if (code.kind == DeviceCode::Kind::kPtx) return ">= " + capability;
  return std::to_string(code.capability.major) + ".x from " + capability;
}

std::optional<Version> driver_needed(const Variant& variant, Version capability) {
  std::optional<Version> lowest;
  for (const DeviceCode& code : variant.needs.device_code) {
    if (!covers(code, capability)) continue;
    const Version needed = lowest_driver(variant.needs, code.kind);
    if (!lowest || needed < *lowest) lowest = needed;
  }
  return lowest;
}

const Gpu* find_uncovered(const Variant& variant, const Question& question) {
  for (const Gpu* gpu : question.gpus) {
    if (!driver_needed(variant, gpu->capability)) return gpu;
  }
  return nullptr;
}

std::string policy_remedy(const Variant& variant, const Fit& fit, const Question& question) {
  std::vector<std::string> remedies;
  for (const Policy& each : kPolicies) {
    if (each.forbids(variant, fit, question)) remedies.emplace_back(each.remedy);
    if (remedies.size() == 1 && is_denied(variant, question)) break;  // for a reason, above all
  }
  return join(remedies, " and ");
}

Fit best_fit(const Variant& variant, const Question& question) {
  if (variant.needs.is_cpu()) return {.kind = Fit::Kind::kCpu};
  if (question.gpus.empty() || !question.host->driver) return {};
  Fit worst{.kind = Fit::Kind::kExact, .code = {.capability = {9999, 9999}}};
  for (const Gpu* gpu : question.gpus) {
    const Fit fit = fit_one(variant, *gpu, *question.host->driver);
    if (fit.kind == Fit::Kind::kNone) return fit;
    if (code_key(worst) < code_key(fit)) worst = fit;
  }
  return worst;
}

std::string describe_fit(const Variant& variant, const Fit& fit, const Question& question) {
  std::string text = to_string(fit.code);
  switch (fit.kind) {
    case Fit::Kind::kExact:
      text += ", for exactly this GPU";
      break;
    case Fit::Kind::kFamily:
      text += ", for this GPU's family";
      break;
    case Fit::Kind::kSameSm:
      text += ", for this GPU";
      break;
    case Fit::Kind::kLowerMinor:
      text += ", runs on later minor revisions too";
      break;
    case Fit::Kind::kPtx:
      text += " PTX, compiled by the driver at first load";
      break;
    case Fit::Kind::kCpu:
      return "for CPUs of level " + to_string(variant.needs.cpu);
    case Fit::Kind::kNone:
      return "has no code for this GPU";
  }
  const std::optional<Version>& toolkit = variant.needs.toolkit;
  const std::optional<Version>& driver = question.host->driver;
  if (toolkit && driver && *toolkit > *driver) {
    text += "; CUDA " + to_string(*toolkit) + " on a " + to_string(*driver) +
            " driver of the same major";
  }
  return text;
}

const std::array<Rule, 10> kRules = {{
    {Refusal::kLoaderTooOld, loader_holds, describe_loader},
    {Refusal::kAbi, abi_holds, describe_abi},
    {Refusal::kArch, arch_holds, describe_arch},
    {Refusal::kGlibc, glibc_holds, describe_glibc},
    {Refusal::kCpuLevel, cpu_holds, describe_cpu},
    {Refusal::kDevice, device_holds, describe_device},
    {Refusal::kDriver, driver_holds, describe_driver},
    {Refusal::kNoDeviceCode, code_holds, describe_code},
    {Refusal::kLibrary, library_holds, describe_library},
    {Refusal::kPolicy, policy_holds, describe_policy},
}};

bool is_asked(Refusal rule, const Variant& variant, const Question& question) {
  const bool of_gpu = rule == Refusal::kDriver || rule == Refusal::kNoDeviceCode;
  return !of_gpu || variant.needs.is_cpu() || !question.gpus.empty();
}

const Rule* first_broken(const Variant& variant, const Fit& fit, const Question& question) {
  const auto* const found = std::find_if(kRules.begin(), kRules.end(), [&](const Rule& rule) {
    return !rule.holds(variant, fit, question);
  });
  return found == kRules.end() ? nullptr : found;
}

std::vector<std::string> deciding_libraries(const Host& host, const Index& index,
                                            const Selection& selection) {
  Host bare = host;
  bare.libraries.clear();
  const Question question = ask(bare, index, selection);
  std::vector<std::string> sonames;
  for (const Variant& variant : index.variants) {
    if (variant.needs.libraries.empty()) continue;
    const Rule* const broken = first_broken(variant, best_fit(variant, question), question);
    if (broken == nullptr || broken->refusal != Refusal::kLibrary) continue;
    sonames.insert(sonames.end(), variant.needs.libraries.begin(), variant.needs.libraries.end());
  }
  return sonames;
}

std::vector<const Rule*> all_broken(const Variant& variant, const Fit& fit,
                                    const Question& question) {
  std::vector<const Rule*> broken;
  for (const Rule& rule : kRules) {
    if (rule.holds(variant, fit, question)) continue;
    broken.push_back(&rule);
    if (!variant.unread.empty()) break;
  }
  return broken;
}

bool is_denied(const Variant& variant, const Question& question) {
  const auto& ids = question.selection->deny;
  const auto& digests = question.denied;
  return std::find(ids.begin(), ids.end(), variant.id) != ids.end() ||
         std::find(digests.begin(), digests.end(), variant.manifest.digest) != digests.end();
}

Rank rank_of(const Variant& variant, const Fit& fit, Refusal refusal) {
  const Version toolkit = variant.needs.toolkit.value_or(Version{});
  // The refusals are numbered as the rules are: who breaks a later one has passed more.
  const int passed =
      refusal == Refusal::kNone ? static_cast<int>(kRules.size()) + 1 : static_cast<int>(refusal);
  // Code that runs on a GPU is of its capability or a lower one: the highest is the closest.
  return {{-passed, static_cast<int>(fit.kind), -number(fit.code.capability), -number(toolkit),
           -variant.needs.cpu.level},
          variant.id,
          variant.manifest.digest.hex()};
}

RankRule deciding_rule(const Rank& left, const Rank& right) {
  const auto* const differ =
      std::mismatch(left.numbers.begin(), left.numbers.end(), right.numbers.begin()).first;
  if (differ != left.numbers.end()) return static_cast<RankRule>(differ - left.numbers.begin());
  return left.id != right.id ? RankRule::kId : RankRule::kDigest;
}

std::string_view describe(RankRule rule) {
  static constexpr std::string_view kTexts[] = {
      "it passes more of the rules",
      "its code is more specific to the GPU",
      "its code is closer to the GPU's compute capability",
      "its CUDA toolkit is newer",
      "it uses a higher CPU level",
      "its id comes first in the alphabet",
      "its digest is lower"};
  static_assert(std::size(kTexts) == static_cast<std::size_t>(RankRule::kDigest) + 1);
  return kTexts[static_cast<std::size_t>(rule)];
}

}  // namespace kiln
