// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include "commands.hpp"
#include "fetch.hpp"
#include "install.hpp"
#include "output.hpp"

namespace kiln::cli {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::vector<std::string> code_words(const Needs& needs) {
  std::vector<std::string> words;
  for (const DeviceCode& code : needs.device_code) words.push_back(to_string(code));
  return words;
}

Json to_json(const Variant& variant) {
  const Needs& needs = variant.needs;
  Json document = {{"variant", variant.id},       {"manifest", variant.manifest.digest.str()},
                   {"cpu", to_string(needs.cpu)}, {"glibc", to_string(needs.glibc)},
                   {"needs", needs.libraries},    {"tested", variant.tested}};
  if (!needs.is_cpu()) {
    document["cuda_toolkit"] = to_string(*needs.toolkit);
    document["min_driver_cuda"] = to_string(*needs.min_driver);
    document["device_code"] = code_words(needs);
  }
  return document;
}

void print_variant(const Variant& variant) {
  const Needs& needs = variant.needs;
  std::string facts = to_string(needs.cpu) + ", glibc " + to_string(needs.glibc);
  if (!needs.is_cpu()) {
    facts += ", driver CUDA " + to_string(*needs.min_driver) + ", " + joined(code_words(needs));
  }
  std::printf("  %-26s %-48s %s\n", variant.id.c_str(), facts.c_str(), variant.tested.c_str());
}

}  // namespace

int info(const Options& options) {
  const Spec& spec = options.specs.front();
  const std::string registry = canonical_registry(options.request.registry);
  const std::vector<int> versions = open_source(registry)->versions(spec.name);
  Request request = options.request_for(spec);
  if (request.version == 0) request.version = versions.back();
  const Selected selected = select(spec.name, request);
  if (options.json) {
    Json variants = Json::array();
    for (const Variant& variant : selected.index.variants) variants.push_back(to_json(variant));
    print_json("info", {{"name", spec.name},
                        {"version", request.version},
                        {"versions", versions},
                        {"registry", registry},
                        {"index", selected.descriptor.digest.str()},
                        {"variants", variants}});
    return 0;
  }
  std::string published;
  for (const int version : versions) published += " " + std::to_string(version);
  std::printf("%s@%d  from %s\n", spec.name.c_str(), request.version, registry.c_str());
  std::printf("versions %s\nindex     %s\nvariants\n", published.c_str(),
              selected.descriptor.digest.str().c_str());
  for (const Variant& variant : selected.index.variants) print_variant(variant);
  return 0;
}

}  // namespace kiln::cli
