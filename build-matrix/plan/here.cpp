// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/plan/here.hpp"

#include <kiln/abi.h>

#include <set>

#include "resolve/resolve.hpp"

namespace kiln::build {

std::vector<Choice> choices_of(const Host& host, const Package& package,
                               const std::vector<VariantPlan>& variants, Version glibc) {
  const NeededLoader any_loader{.min_loader = package.min_loader, .abi = KILN_ABI_MAJOR};
  Index index{.name = package.name, .version = package.version, .requires_ = any_loader};
  for (const VariantPlan& plan : variants) {
    Variant variant;
    variant.id = plan.id;
    variant.requires_ = any_loader;
    variant.needs = {.cpu = plan.cpu,
                     .glibc = plan.binary ? plan.binary->glibc : glibc,
                     .toolkit = plan.toolkit,
                     .min_driver = plan.min_driver,
                     .device_code = plan.device_code(),
                     .libraries = plan.libraries};
    index.variants.push_back(std::move(variant));
  }
  std::vector<Device> devices = {Device::cpu()};
  for (const Gpu& gpu : host.gpus) devices.push_back(Device::cuda(gpu.ordinal));
  std::vector<Choice> choices;
  for (const Device& device : devices) {
    const Resolution resolution = resolve(host, index, {.device = device});
    Choice choice{.device = device, .variant = {}, .why = resolution.hint};
    if (resolution.chosen) {
      const Decision& decision = resolution.decisions[*resolution.chosen];
      choice = {.device = device, .variant = decision.variant, .why = decision.detail};
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

std::vector<std::string> libraries_of(const std::vector<VariantPlan>& variants) {
  std::set<std::string> sonames;
  for (const VariantPlan& plan : variants) {
    sonames.insert(plan.libraries.begin(), plan.libraries.end());
  }
  return {sonames.begin(), sonames.end()};
}

}  // namespace kiln::build
