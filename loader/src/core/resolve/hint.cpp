// SPDX-License-Identifier: Apache-2.0
#include "resolve/hint.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <tuple>

#include "base/join.hpp"
#include "base/quote.hpp"
#include "documents/names.hpp"
#include "kiln/abi.h"

namespace kiln {

namespace {

constexpr std::size_t kListed = 12;

/// The driver release that first supported a CUDA version (CUDA Toolkit release notes, table 3).
struct DriverRelease {
  Version cuda;
  int release;
};
constexpr std::array kDriverReleases = {
    DriverRelease{{11, 0}, 450}, DriverRelease{{11, 1}, 455}, DriverRelease{{11, 2}, 460},
    DriverRelease{{11, 3}, 465}, DriverRelease{{11, 4}, 470}, DriverRelease{{11, 5}, 495},
    DriverRelease{{11, 6}, 510}, DriverRelease{{11, 7}, 515}, DriverRelease{{11, 8}, 520},
    DriverRelease{{12, 0}, 525}, DriverRelease{{12, 1}, 530}, DriverRelease{{12, 2}, 535},
    DriverRelease{{12, 3}, 545}, DriverRelease{{12, 4}, 550}, DriverRelease{{12, 5}, 555},
    DriverRelease{{12, 6}, 560}, DriverRelease{{12, 8}, 570}, DriverRelease{{12, 9}, 575},
    DriverRelease{{13, 0}, 580},
};

std::string describe_driver(Version cuda) {
  std::string text = "CUDA >= " + to_string(cuda);
  for (const DriverRelease& known : kDriverReleases) {
    if (known.cuda == cuda) text += " (release " + std::to_string(known.release) + " or newer)";
  }
  return text;
}

/// "a, b, c and 5 more"
std::string listed(const std::set<std::string>& words) {
  std::string text;
  std::size_t count = 0;
  for (const std::string& word : words) {
    if (++count > kListed) break;
    text += (count > 1 ? ", " : "") + word;
  }
  if (words.size() > kListed) text += " and " + std::to_string(words.size() - kListed) + " more";
  return text;
}

std::string library_remedy(const Variant& variant, const Question& question) {
  const std::vector<std::string>& present = question.host->libraries;
  std::vector<std::string> missing;
  for (const std::string& soname : variant.needs.libraries) {
    if (std::find(present.begin(), present.end(), soname) != present.end()) continue;
    missing.push_back(soname);
  }
  return "install " + join(missing) + " where the dynamic linker finds it (LD_LIBRARY_PATH)";
}

/// How far a piece of code is from a GPU that does not run it: by capability; of equals PTX, which
/// more GPUs run.
auto distance(const DeviceCode& code, Version capability) {
  const int steps =
      10 * (code.capability.major - capability.major) + (code.capability.minor - capability.minor);
  return std::tuple(std::abs(steps), code.kind != DeviceCode::Kind::kPtx, code);
}

/// Of a variant that has code, the piece that is nearest to a GPU.
const DeviceCode& nearest_code(const Variant& variant, Version capability) {
  const std::vector<DeviceCode>& codes = variant.needs.device_code;
  return *std::min_element(codes.begin(), codes.end(),
                           [&](const DeviceCode& left, const DeviceCode& right) {
                             return distance(left, capability) < distance(right, capability);
                           });
}

std::string code_remedy(const Variant& variant, const Question& question) {
  if (question.gpus.size() > 1) {
    return "take a variant for each GPU (drop --all-devices, .all_gpus = false), or show it only "
           "the GPUs that it has code for (CUDA_VISIBLE_DEVICES)";
  }
  if (variant.needs.device_code.empty()) return "take a variant that has device code";
  const DeviceCode& code = nearest_code(variant, question.gpus.front()->capability);
  return "run it on a GPU of " + std::string(code.suffix == 'f' ? "" : "compute capability ") +
         runs_on(code);
}

/// The lowest that runs the variant on these GPUs.
Version needed_driver(const Variant& variant, const Question& question) {
  const Needs& needs = variant.needs;
  const Version toolkit = needs.toolkit.value_or(Version{});
  Version needed = std::max(Version{toolkit.major, 0}, needs.min_driver.value_or(Version{}));
  for (const Gpu* gpu : question.gpus) {
    if (const auto for_gpu = driver_needed(variant, gpu->capability)) {
      needed = std::max(needed, *for_gpu);
    }
  }
  return needed;
}

std::string driver_remedy(const Variant& variant, const Question& question) {
  const std::optional<Version>& found = question.host->driver;
  return (found ? "upgrade the driver from CUDA " + to_string(*found) + " to "
                : "install a driver of ") +
         describe_driver(needed_driver(variant, question));
}

/// What would take this obstacle away.
std::string remedy(const Variant& variant, const Fit& fit, Refusal refusal,
                   const Question& question) {
  const Needs& needs = variant.needs;
  switch (refusal) {
    case Refusal::kLoaderTooOld:
      return "upgrade kiln to " + variant.requires_.min_loader + " or newer";
    case Refusal::kAbi:
      return variant.requires_.abi > KILN_ABI_MAJOR ? "upgrade kiln"
                                                    : "take a newer version of the package";
    case Refusal::kArch:
      return "run it on " + std::string(to_string(needs.cpu.arch));
    case Refusal::kGlibc:
      return "run it on a system with glibc >= " + to_string(needs.glibc);
    case Refusal::kCpuLevel:
      return "run it on a CPU of level " + to_string(needs.cpu);
    case Refusal::kDevice:
      if (needs.is_cpu()) return "ask for it with --device cpu (.device = kiln::Device::cpu())";
      if (!question.host->gpus_asked) return "ask for it with --device cuda:0";
      return question.host->gpus.empty() ? "run it on a machine with an NVIDIA GPU"
                                         : "ask for it with --device cuda:" +
                                               std::to_string(question.host->gpus.front().ordinal);
    case Refusal::kDriver:
      return driver_remedy(variant, question);
    case Refusal::kNoDeviceCode:
      return code_remedy(variant, question);
    case Refusal::kLibrary:
      return library_remedy(variant, question);
    case Refusal::kPolicy:
      return policy_remedy(variant, fit, question);
    case Refusal::kNone:
      break;
  }
  return "nothing";
}

/// How many obstacles a variant has. What was denied is the last that is offered.
std::size_t count_obstacles(const Variant& variant, const Fit& fit, const Question& question) {
  std::size_t count = all_broken(variant, fit, question).size();
  if (question.gpus.empty() && !variant.needs.is_cpu()) ++count;  // its GPU rules were not asked
  return count + (is_denied(variant, question) ? kRules.size() : 0);
}

/// Whether both have code, but none for some GPU, and the first one's is nearer to it.
bool has_nearer_code(const Variant& variant, const Variant& other, const Question& question) {
  const Gpu* const gpu = find_uncovered(variant, question);
  const Gpu* const others = find_uncovered(other, question);
  if (gpu == nullptr || others == nullptr) return false;
  if (variant.needs.device_code.empty() || other.needs.device_code.empty()) return false;
  return distance(nearest_code(variant, gpu->capability), gpu->capability) <
         distance(nearest_code(other, others->capability), others->capability);
}

/// Whether a driver stands in the way of both, which have the same code, and an older one would do
/// for the first.
bool needs_older_driver(const Variant& variant, const Fit& fit, const Variant& other,
                        const Fit& others, const Question& question) {
  const auto breaks = [&](const Variant& each, const Fit& its_fit) {
    return std::ranges::any_of(all_broken(each, its_fit, question),
                               [](const Rule* rule) { return rule->refusal == Refusal::kDriver; });
  };
  if (question.gpus.empty() || !breaks(variant, fit) || !breaks(other, others)) return false;
  const Version capability = question.gpus.front()->capability;
  if (variant.needs.device_code.empty() || other.needs.device_code.empty()) return false;
  return nearest_code(variant, capability) == nearest_code(other, capability) &&
         needed_driver(variant, question) < needed_driver(other, question);
}

/// Fewest obstacles first; of equals that lack code the one whose code is nearest, of those that
/// lack a driver for the same code the one that an older one runs, else the one that passed more
/// rules, then the better fit.
std::size_t find_nearest(const Index& index, const std::vector<Fit>& fits,
                         const std::vector<std::size_t>& best_first, const Question& question) {
  const std::string& pinned = question.selection->variant;
  std::size_t nearest = best_first.front();
  std::size_t fewest = ~std::size_t{0};
  for (const std::size_t position : best_first) {
    const Variant& variant = index.variants[position];
    if (variant.id == pinned) return position;
    const std::size_t count = count_obstacles(variant, fits[position], question);
    if (count > fewest) continue;
    if (count == fewest && !has_nearer_code(variant, index.variants[nearest], question) &&
        !needs_older_driver(variant, fits[position], index.variants[nearest], fits[nearest],
                            question)) {
      continue;
    }
    fewest = count;
    nearest = position;
  }
  return nearest;
}

/// "; or take cpu-x86-64-v3 …" for a GPU request that only a CPU variant could serve.
std::string cpu_alternative(const Index& index, const std::vector<Fit>& fits,
                            const std::vector<std::size_t>& best_first, const Question& question) {
  if (question.gpus.empty() || !question.selection->variant.empty()) return {};
  for (const std::size_t position : best_first) {
    const Variant& variant = index.variants[position];
    if (!variant.needs.is_cpu()) continue;
    const std::vector<const Rule*> broken = all_broken(variant, fits[position], question);
    if (broken.size() != 1 || broken.front()->refusal != Refusal::kDevice) continue;
    return "; or take " + variant.id + " with --device cpu (.device = kiln::Device::cpu())";
  }
  return {};
}

}  // namespace

std::string make_hint(const Index& index, const std::vector<Fit>& fits,
                      const std::vector<std::size_t>& best_first, const Question& question) {
  const std::string subject = label(index.name, index.version);
  if (best_first.empty()) return subject + " lists no variants that this kiln can read";
  const std::string& pinned = question.selection->variant;
  std::set<std::string> ids;
  std::set<std::string> codes;
  for (const Variant& variant : index.variants) {
    ids.insert(variant.id);
    if (variant.needs.cpu.arch != question.host->arch) continue;
    for (const DeviceCode& code : variant.needs.device_code) codes.insert(to_string(code));
  }
  if (!pinned.empty() && ids.count(pinned) == 0) {
    return subject + " has no variant " + quote(pinned) + "; it has " + listed(ids);
  }

  const std::size_t position = find_nearest(index, fits, best_first, question);
  const Variant& nearest = index.variants[position];
  std::vector<std::string> remedies;
  bool no_code = false;
  for (const Rule* broken : all_broken(nearest, fits[position], question)) {
    remedies.push_back(remedy(nearest, fits[position], broken->refusal, question));
    no_code = no_code || broken->refusal == Refusal::kNoDeviceCode;
  }
  std::string hint = "nearest: " + nearest.id + " -> " + join(remedies, " and ");
  if (no_code && !codes.empty()) {
    hint += " (" + subject + " has " + listed(codes) + " for " +
            std::string(to_string(question.host->arch)) + ")";
  }
  if (!nearest.needs.is_cpu()) hint += cpu_alternative(index, fits, best_first, question);
  return hint;
}

}  // namespace kiln
