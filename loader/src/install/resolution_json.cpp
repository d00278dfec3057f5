// SPDX-License-Identifier: Apache-2.0
#include "install/resolution_json.hpp"
#include "documents/json.hpp"

#include <string>
#include <utility>

namespace kiln {
Json to_json(const Resolution& resolution) {
  Json candidates = Json::array();
  for (const Decision& decision : resolution.decisions) {
    Json candidate = {{"variant", decision.variant},
                      {"digest", decision.digest},
                      {"accepted", decision.accepted()},
                      {"rank", decision.rank},
                      {"detail", decision.detail}};
    if (!decision.accepted()) candidate["refusal"] = std::string(to_string(decision.refusal));
    candidates.push_back(std::move(candidate));
  }
  const bool found = resolution.chosen.has_value();
  return {
      {"name", resolution.name},
      {"version", resolution.version},
      {"device", to_string(resolution.device)},
      {"all_gpus", resolution.all_gpus},
      {"host", to_json(resolution.host)},
      {"chosen", found ? Json(resolution.decisions[*resolution.chosen].variant) : Json(nullptr)},
      {"candidates", candidates},
      {"hint", resolution.hint},
      {"tuned", resolution.tuned}};
}

Json to_json(const Choice& choice) {
  Json document = to_json(choice.resolution);
  document["registry"] = choice.registry;
  document["index"] = choice.version.descriptor.digest.str();
  document["advisories"] = Json::array();
  for (const Advisory& each : choice.warnings()) {
    document["advisories"].push_back(text_for(each, choice.resolution.host));
  }
  document["refused"] = Json::array();
  for (const Resolution& refused : choice.refused) {
    document["refused"].push_back(to_json(refused));
  }
  return document;
}

Json with_schema(std::string_view kind, Json document) {
  document["schema"] = "kiln." + std::string(kind) + "/1";
  return document;
}

}  // namespace kiln
