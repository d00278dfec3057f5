// SPDX-License-Identifier: Apache-2.0
#include "kiln/resolve.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "hint.hpp"
#include "kiln/error.hpp"
#include "rules.hpp"

namespace kiln {

namespace {

/// "sm_90a, for exactly this GPU": how the code of an accepted variant fits.
std::string describe_fit(const Variant& variant, const Fit& fit, const Host& host) {
  const std::string code = to_string(fit.code);
  std::string text;
  switch (fit.kind) {
    case Fit::Kind::kExact:
      text = code + ", for exactly this GPU";
      break;
    case Fit::Kind::kFamily:
      text = code + ", for this GPU's family";
      break;
    case Fit::Kind::kSameSm:
      text = code + ", for this GPU";
      break;
    case Fit::Kind::kLowerMinor:
      text = code + ", runs on later minor revisions too";
      break;
    case Fit::Kind::kPtx:
      text = code + " PTX, compiled by the driver at first load";
      break;
    case Fit::Kind::kCpu:
      return "for CPUs of level " + to_string(variant.needs.cpu);
    case Fit::Kind::kNone:
      break;
  }
  if (variant.needs.toolkit && host.driver && *variant.needs.toolkit > *host.driver) {
    text += "; CUDA " + to_string(*variant.needs.toolkit) + " on a " + to_string(*host.driver) +
            " driver of the same major";
  }
  return text;
}

[[noreturn]] void fail_no_gpu(const Host& host, const Index& index, int ordinal) {
  const std::string asked = "resolve " + index.name + "@" + std::to_string(index.version) +
                            ": cuda:" + std::to_string(ordinal) + " was asked for, ";
  if (host.gpus.empty()) {
    throw Error(ErrorCode::kUsage,
                asked +
                    "this machine shows no GPU. Check nvidia-smi and CUDA_VISIBLE_DEVICES, or take "
                    "--device cpu (kiln::Device::cpu())");
  }
  throw Error(ErrorCode::kUsage,
              asked + "this machine has " + describe_gpus(host.gpus) + ". Ask for one of them");
}

const Gpu* find_gpu(const Host& host, int ordinal) {
  const auto found = std::find_if(host.gpus.begin(), host.gpus.end(),
                                  [&](const Gpu& gpu) { return gpu.ordinal == ordinal; });
  return found == host.gpus.end() ? nullptr : &*found;
}

Question ask(const Host& host, const Index& index, const Selection& selection) {
  Question question{.host = &host, .device = selection.device, .selection = &selection};
  if (question.device.kind == Device::Kind::kAuto) {
    question.device = host.gpus.empty() ? Device::cpu() : Device::cuda(host.gpus.front().ordinal);
  }
  if (question.device.kind == Device::Kind::kCuda) {
    question.gpu = find_gpu(host, question.device.ordinal);
    if (question.gpu == nullptr) fail_no_gpu(host, index, question.device.ordinal);
  }
  return question;
}

}  // namespace

std::string to_string(Device device) {
  switch (device.kind) {
    case Device::Kind::kAuto:
      return "auto";
    case Device::Kind::kCpu:
      return "cpu";
    case Device::Kind::kCuda:
      break;
  }
  return "cuda:" + std::to_string(device.ordinal);
}

std::string_view to_string(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "NONE";
    case Refusal::kLoaderTooOld:
      return "LOADER_TOO_OLD";
    case Refusal::kAbi:
      return "ABI";
    case Refusal::kArch:
      return "ARCH";
    case Refusal::kGlibc:
      return "GLIBC";
    case Refusal::kCpuLevel:
      return "CPU_LEVEL";
    case Refusal::kDevice:
      return "DEVICE";
    case Refusal::kDriver:
      return "DRIVER";
    case Refusal::kNoDeviceCode:
      return "NO_DEVICE_CODE";
    case Refusal::kLibrary:
      return "LIBRARY";
    case Refusal::kPolicy:
      return "POLICY";
  }
  return "UNKNOWN";
}

Resolution resolve(const Host& host, const Index& index, const Selection& selection) {
  const Question question = ask(host, index, selection);
  const std::vector<Variant>& variants = index.variants;
  Resolution resolution{
      .name = index.name, .version = index.version, .device = question.device, .host = host};
  std::vector<Fit> fits;
  fits.reserve(variants.size());
  resolution.decisions.reserve(variants.size());
  for (const Variant& variant : variants) {
    const Fit& fit = fits.emplace_back(best_fit(variant, question));
    Decision decision{.variant = variant.id, .digest = variant.manifest.digest.str()};
    if (std::optional<Obstacle> obstacle = first_obstacle(variant, fit, question)) {
      decision.refusal = obstacle->refusal;
      decision.detail = std::move(obstacle->detail);
    } else {
      decision.detail = describe_fit(variant, fit, host);
    }
    resolution.decisions.push_back(std::move(decision));
  }

  std::vector<std::size_t> best_first(variants.size());
  std::iota(best_first.begin(), best_first.end(), std::size_t{0});
  std::sort(best_first.begin(), best_first.end(), [&](std::size_t left, std::size_t right) {
    const Refusal left_refusal = resolution.decisions[left].refusal;
    const Refusal right_refusal = resolution.decisions[right].refusal;
    if (left_refusal != right_refusal) {
      if (left_refusal == Refusal::kNone || right_refusal == Refusal::kNone) {
        return left_refusal == Refusal::kNone;
      }
      return left_refusal > right_refusal;  // it passed more of the rules
    }
    return ranks_before(variants[left], fits[left], variants[right], fits[right], question);
  });
  for (std::size_t i = 0; i < best_first.size(); ++i) {
    resolution.decisions[best_first[i]].rank = i + 1;
  }
  if (!best_first.empty() && resolution.decisions[best_first.front()].accepted()) {
    resolution.chosen = best_first.front();
  } else {
    resolution.hint = make_hint(index, fits, best_first, question);
  }
  return resolution;
}

}  // namespace kiln
