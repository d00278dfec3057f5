// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/plan/expand.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/join.hpp"
#include "build-matrix/schema/names.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

template <class Value>
bool holds(const std::vector<Value>& list, const Value& value) {
  return std::ranges::find(list, value) != list.end();
}

template <class Value>
bool empty_or_holds(const std::vector<Value>& list, const Value& value) {
  return list.empty() || holds(list, value);
}

const Exclusion* excluded_by(const Matrix& matrix, const Package& package, Version toolkit,
                             const DeviceCode& target, Arch host) {
  const std::string_view compiler = package.cuda.launches() ? "triton" : "nvrtc";
  const bool has_headers = !package.cuda.headers.empty();
  for (const Exclusion& exclusion : matrix.exclusions) {
    if (!exclusion.compiler.empty() && exclusion.compiler != compiler) continue;
    if (exclusion.headers.value_or(has_headers) != has_headers) continue;
    if (empty_or_holds(exclusion.toolkits, toolkit) && empty_or_holds(exclusion.targets, target) &&
        empty_or_holds(exclusion.hosts, host)) {
      return &exclusion;
    }
  }
  return nullptr;
}

[[noreturn]] void not_on_axis(const Package& package, const std::string& what,
                              const std::string& found, const std::string& axis) {
  throw Error(ErrorCode::kBuild, "expand " + package.name + ": " + what + " \"" + found +
                                     "\" is not in the build matrix, which has " + axis +
                                     "; add it to matrix.json or correct package.json");
}

template <class Value>
std::string joined(const std::vector<Value>& values) {
  return join(values, ", ", [](const Value& value) { return to_string(value); });
}

void check_axes(const Matrix& matrix, const Package& package) {
  const auto check_target = [&](const std::string& what, const DeviceCode& target) {
    if (!holds(matrix.targets, target)) {
      not_on_axis(package, what, to_string(target), joined(matrix.targets));
    }
  };
  for (const DeviceSource& device : package.cuda.device) {
    for (const DeviceCode& target : device.targets) {
      check_target("target of " + device.source, target);
    }
  }
  for (const std::string& name : package.cuda.headers) {
    if (!holds(matrix.headers, name)) not_on_axis(package, "headers", name, join(matrix.headers));
  }
  for (const DeviceCode& target : package.cuda.launch.targets) check_target("target", target);
  for (const CpuLevel& level : package.cpu.levels) {
    if (!holds(matrix.cpu_levels, level)) {
      not_on_axis(package, "CPU level", to_string(level), joined(matrix.cpu_levels));
    }
  }
}

// What a variant for `target` holds of a source: sm_90a also runs sm_90's code, so that a source
// which asks for nothing of sm_90a's own is compiled once for both.
std::optional<DeviceCode> code_for(const DeviceSource& device, DeviceCode target) {
  if (!holds(device.targets, target)) target.suffix = 0;
  return holds(device.targets, target) ? std::optional(target) : std::nullopt;
}

/// What a package's launches make of each target, whatever the toolkit and the host.
class TritonImages {
 public:
  explicit TritonImages(const Package& package) : package_(package) {}

  const std::vector<TritonImage>& of(const DeviceCode& target) {
    const auto [at, is_new] = known_.try_emplace(to_string(target));
    if (is_new) at->second = plan_triton(package_, target).images;
    return at->second;
  }

 private:
  const Package& package_;
  std::map<std::string, std::vector<TritonImage>> known_;
};

void expand_cuda(const Matrix& matrix, const Package& package, const Toolkit& toolkit,
                 const DeviceCode& target, Arch host, TritonImages& images, Expansion& expansion) {
  VariantPlan plan{
      .id = "cu" + to_string(toolkit.version) + "-" + to_string(target) + "-" +
            std::string(to_string(host)),
      .cpu = {.arch = host, .level = 1},
      .toolkit = toolkit.version,
      // Any driver of the same major version runs machine code; PTX must not be newer
      // than the driver that compiles it.
      .min_driver = target.kind == DeviceCode::Kind::kPtx ? toolkit.version : toolkit.min_driver,
      .target = target,
      .host = package.cuda.host,
      .headers = package.cuda.headers,
      .risk = toolkit.risk};
  if (const Exclusion* exclusion = excluded_by(matrix, package, toolkit.version, target, host)) {
    expansion.excluded.push_back({plan.id, exclusion->reason});
    return;
  }
  for (const DeviceSource& device : package.cuda.device) {
    if (const std::optional<DeviceCode> code = code_for(device, target)) {
      plan.images.push_back({device.source, device.stem, *code});
    }
  }
  if (holds(package.cuda.launch.targets, target)) {
    for (const TritonImage& image : images.of(target)) {
      plan.images.push_back({image.source, image.kernel, target, image.forms});
    }
  }
  if (std::ranges::find(plan.images, target, &ImagePlan::code) == plan.images.end()) {
    expansion.excluded.push_back(
        {plan.id, "no device source of " + package.name + " targets " + to_string(target)});
    return;
  }
  if (plan.images.size() > kMaxImages) {
    throw Error(ErrorCode::kBuild, "expand " + package.name + " for " + to_string(target) + ": " +
                                       std::to_string(plan.images.size()) +
                                       " device sources have code for it; at most " +
                                       std::to_string(kMaxImages) +
                                       " can be loaded. Put kernels of several into one source");
  }
  for (const LibraryNeed& need : package.cuda.needs) {
    if (empty_or_holds(need.targets, target)) {
      plan.libraries.push_back(soname_for(need.soname, toolkit.version.major));
    }
  }
  expansion.variants.push_back(std::move(plan));
}

void add_binary(const Package& package, const Binary& binary, Expansion& expansion) {
  VariantPlan plan{.id = binary.variant(),
                   .cpu = binary.cpu,
                   .toolkit = binary.toolkit,
                   .min_driver = binary.min_driver(),
                   .libraries = binary.needs,
                   .binary = binary};
  if (std::ranges::find(expansion.variants, plan.id, &VariantPlan::id) !=
      expansion.variants.end()) {
    throw Error(ErrorCode::kBuild, "expand " + package.name + ": " + binary.file +
                                       " is the variant " + plan.id +
                                       ", which is compiled, too; leave out one of them");
  }
  expansion.variants.push_back(std::move(plan));
}

}  // namespace

std::vector<DeviceCode> VariantPlan::device_code() const {
  if (binary) return binary->targets;
  return target ? std::vector{*target} : std::vector<DeviceCode>();
}

Expansion expand(const Matrix& matrix, const Package& package) {
  check_axes(matrix, package);
  Expansion expansion;
  if (package.cuda.present()) {
    TritonImages images(package);
    for (const Toolkit& toolkit : matrix.toolkits) {
      for (const Arch host : matrix.hosts) {
        for (const DeviceCode& target : matrix.targets) {
          expand_cuda(matrix, package, toolkit, target, host, images, expansion);
        }
      }
    }
  }
  if (package.cpu.present()) {
    for (const CpuLevel& level : matrix.cpu_levels) {
      const std::string id = "cpu-" + to_string(level);
      if (holds(package.cpu.levels, level)) {
        expansion.variants.push_back({.id = id, .cpu = level, .host = package.cpu.host});
      } else {
        expansion.excluded.push_back({id, package.name + " does not list this CPU level"});
      }
    }
  }
  for (const Binary& binary : package.binaries) add_binary(package, binary, expansion);
  return expansion;
}

}  // namespace kiln::build
