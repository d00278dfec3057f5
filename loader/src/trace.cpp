// SPDX-License-Identifier: Apache-2.0
#include "trace.hpp"

#include <string>
#include <utility>

namespace kiln {
namespace {

Json version_or_null(const std::optional<Version>& version) {
  return version ? Json(to_string(*version)) : Json(nullptr);
}

}  // namespace

Json to_json(const Host& host) {
  Json gpus = Json::array();
  for (const Gpu& gpu : host.gpus) {
    gpus.push_back({{"ordinal", gpu.ordinal},
                    {"name", gpu.name},
                    {"compute_capability", to_string(gpu.capability)}});
  }
  return {{"arch", std::string(to_string(host.arch))},
          {"cpu", to_string(host.cpu)},
          {"glibc", version_or_null(host.glibc)},
          {"driver_cuda", version_or_null(host.driver)},
          {"gpus", gpus},
          {"libraries", host.libraries},
          {"overridden", host.overridden}};
}

Json to_json(const Resolution& resolution) {
  Json candidates = Json::array();
  for (const Decision& decision : resolution.decisions) {
    Json candidate = {{"variant", decision.variant},
                      {"digest", decision.digest},
                      {"accepted", decision.accepted()},
                      {"detail", decision.detail}};
    if (!decision.accepted()) candidate["refusal"] = std::string(to_string(decision.refusal));
    candidates.push_back(std::move(candidate));
  }
  const bool found = resolution.chosen.has_value();
  return {
      {"name", resolution.name},
      {"version", resolution.version},
      {"device", to_string(resolution.device)},
      {"host", to_json(resolution.host)},
      {"chosen", found ? Json(resolution.decisions[*resolution.chosen].variant) : Json(nullptr)},
      {"candidates", candidates},
      {"hint", resolution.hint}};
}

Json to_json(const Selected& selected) {
  Json document = to_json(selected.resolution);
  document["registry"] = selected.registry;
  document["index"] = selected.descriptor.digest.str();
  return document;
}

Json with_schema(std::string_view kind, Json document) {
  document["schema"] = "kiln." + std::string(kind) + "/1";
  return document;
}

}  // namespace kiln
