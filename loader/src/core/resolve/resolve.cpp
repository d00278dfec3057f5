// SPDX-License-Identifier: Apache-2.0
#include "resolve/resolve.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "base/quote.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "resolve/hint.hpp"
#include "resolve/rules.hpp"

namespace kiln {

namespace {

std::string describe_no_gpu(const Host& host, const Index& index, Device device) {
  constexpr const char* kCpu = "take --device cpu (kiln::Device::cpu())";
  const bool has_cpu = std::ranges::any_of(index.variants, [&](const Variant& variant) {
    return variant.needs.is_cpu() && variant.needs.cpu.arch == host.arch;
  });
  const std::string none = label(index.name, index.version) + " has no variant for this CPU";
  if (!host.driver_problem.empty()) {
    return "an NVIDIA driver is there, and which GPUs it has cannot be told: " +
           host.driver_problem + ". " +
           (has_cpu ? std::string("To do without a GPU, ") + kCpu : none);
  }
  const std::string asked = to_string(device) + " was asked for, ";
  if (host.gpus.empty()) {
    return asked + "this machine shows no GPU. Check nvidia-smi and CUDA_VISIBLE_DEVICES" +
           (has_cpu ? std::string(", or ") + kCpu : "; " + none);
  }
  return asked + "this machine has " + describe_gpus(host.gpus) + ". Ask for one of them";
}

const Gpu* find_gpu(const Host& host, int ordinal) {
  const auto found = std::find_if(host.gpus.begin(), host.gpus.end(),
                                  [&](const Gpu& gpu) { return gpu.ordinal == ordinal; });
  return found == host.gpus.end() ? nullptr : &*found;
}

[[noreturn]] void fail_usage(const Index& index, const std::string& what) {
  throw Error(ErrorCode::kUsage, "resolve " + label(index.name, index.version) + ": " + what);
}

/// A digest without its "sha256:". It could be a variant's id, and is not meant as one.
bool is_bare_digest(std::string_view text) {
  constexpr std::size_t kDigits = 64;
  return text.size() == kDigits &&
         text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

/// A deny list that does not say what it means denies nothing: that must not pass unnoticed.
std::vector<Digest> denied_digests(const Index& index, const std::vector<std::string>& deny) {
  std::vector<Digest> digests;
  for (const std::string& entry : deny) {
    if (!entry.starts_with("sha256:")) {
      if (is_variant_id(entry) && !is_bare_digest(entry)) continue;
      fail_usage(index, "the deny list has " + quote(entry) +
                            ", expected a variant's id or the digest of its manifest, "
                            "\"sha256:<64 hex digits>\". Correct the entry");
    }
    try {
      digests.push_back(Digest::parse(entry));
    } catch (const Error& error) {
      fail_usage(index, "the deny list: " + std::string(error.what()) + ". Correct the entry");
    }
  }
  return digests;
}

/// One GPU of each kind, the first: a test counts for the name, a variant for the capability.
std::vector<const Gpu*> distinct_gpus(const Host& host) {
  std::vector<const Gpu*> distinct;
  for (const Gpu& gpu : host.gpus) {
    const bool known = std::any_of(distinct.begin(), distinct.end(), [&](const Gpu* other) {
      return other->capability == gpu.capability && other->name == gpu.name;
    });
    if (!known) distinct.push_back(&gpu);
  }
  return distinct;
}

}  // namespace

Question ask(const Host& host, const Index& index, const Selection& selection) {
  Question question{.host = &host,
                    .selection = &selection,
                    .device = selection.device,
                    .denied = denied_digests(index, selection.deny)};
  Device& device = question.device;
  if (selection.all_gpus && device.kind == Device::Kind::kCpu) {
    fail_usage(index,
               "every GPU was asked for, and the CPU. Take one of --all-devices (.all_gpus) and "
               "--device cpu");
  }
  if (device.kind == Device::Kind::kCuda && device.ordinal < 0) {
    fail_usage(index, to_string(device) + " was asked for, expected a GPU from cuda:0 on");
  }
  if (device.kind == Device::Kind::kAuto) {
    const bool none = host.gpus.empty() && host.driver_problem.empty();
    device = none ? Device::cpu() : Device::cuda(host.gpus.empty() ? 0 : host.gpus.front().ordinal);
  }
  if (device.kind == Device::Kind::kCuda) {
    const Gpu* const gpu = find_gpu(host, device.ordinal);
    if (gpu == nullptr || (selection.all_gpus && !host.driver_problem.empty())) {
      question.no_gpu = describe_no_gpu(host, index, device);
    } else {
      question.gpus = selection.all_gpus ? distinct_gpus(host) : std::vector{gpu};
    }
  }
  return question;
}

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
  static constexpr std::string_view kWords[] = {
      "NONE",   "LOADER_TOO_OLD", "ABI",     "ARCH",  "GLIBC", "CPU_LEVEL", "DEVICE",
      "DRIVER", "NO_DEVICE_CODE", "LIBRARY", "POLICY"};
  static_assert(std::size(kWords) == static_cast<std::size_t>(Refusal::kPolicy) + 1);
  return kWords[static_cast<std::size_t>(refusal)];
}

Resolution resolve(const Host& host, const Index& index, const Selection& selection) {
  const Question question = ask(host, index, selection);
  const std::vector<Variant>& variants = index.variants;
  Resolution resolution{
      .name = index.name,
      .version = index.version,
      .device = question.device,
      .all_gpus = selection.all_gpus && question.device.kind == Device::Kind::kCuda,
      .host = host};
  std::vector<Fit> fits;
  std::vector<Rank> ranks;
  fits.reserve(variants.size());
  ranks.reserve(variants.size());
  for (const Variant& variant : variants) {
    const Fit& fit = fits.emplace_back(best_fit(variant, question));
    const Rule* const broken = first_broken(variant, fit, question);
    const Refusal refusal = broken == nullptr ? Refusal::kNone : broken->refusal;
    ranks.push_back(rank_of(variant, fit, refusal));
    resolution.decisions.push_back({.variant = variant.id,
                                    .digest = variant.manifest.digest.str(),
                                    .refusal = refusal,
                                    .detail = broken == nullptr
                                                  ? describe_fit(variant, fit, question)
                                                  : broken->describe(variant, fit, question),
                                    .jit = broken == nullptr && fit.kind == Fit::Kind::kPtx});
  }
  std::vector<std::size_t> order(variants.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) -> const Rank& { return ranks[i]; });
  for (std::size_t i = 0; i < order.size(); ++i) resolution.decisions[order[i]].rank = i + 1;
  if (!order.empty() && resolution.decisions[order.front()].accepted()) {
    resolution.chosen = order.front();
  } else if (!question.no_gpu.empty()) {
    resolution.hint = question.no_gpu;
    resolution.code = host.driver_problem.empty() ? ErrorCode::kUsage : ErrorCode::kDevice;
  } else {
    resolution.hint = make_hint(index, fits, order, question);
  }
  return resolution;
}

}  // namespace kiln
