// SPDX-License-Identifier: Apache-2.0
#include "oci/referrers.hpp"

#include <algorithm>

#include "documents/json.hpp"

namespace kiln {
namespace {

constexpr std::string_view kMediaTypeEmpty = "application/vnd.oci.empty.v1+json";

Descriptor descriptor_of(std::string_view type, std::string_view bytes) {
  return {std::string(type), Digest::of(bytes), bytes.size()};
}

}  // namespace

Referrer parse_referrer(std::string_view bytes, const std::string& subject) {
  const Json json = parse_others_json(bytes, subject);
  const JsonView view(json, subject);
  Referrer referrer{parse_descriptor(view.at("config")), {}, std::nullopt};
  for (const JsonView& layer : view.items_of("layers")) {
    referrer.layers.push_back(parse_descriptor(layer));
  }
  if (view.has("subject")) referrer.subject = parse_descriptor(view.at("subject"));
  return referrer;
}

ReferrerList parse_referrers(std::string_view bytes, const std::string& subject) {
  const Json json = parse_others_json(bytes, subject);
  ReferrerList list;
  for (const JsonView& entry : JsonView(json, subject).items_of("manifests")) {
    ListedReferrer listed{parse_descriptor(entry), entry.string_or("artifactType", ""), ""};
    if (listed.manifest.media_type != kMediaTypeManifest) continue;
    if (entry.has("annotations")) listed.annotations = dump_json(entry.at("annotations").json());
    list.push_back(std::move(listed));
  }
  return list;
}

std::string serialize_referrers(const ReferrerList& list) {
  Json manifests = Json::array();
  for (const ListedReferrer& each : list) {
    Json entry = to_json(each.manifest);
    if (!each.artifact_type.empty()) entry["artifactType"] = each.artifact_type;
    if (!each.annotations.empty())
      entry["annotations"] = parse_json(each.annotations, "annotations");
    manifests.push_back(std::move(entry));
  }
  return dump_json(
      {{"schemaVersion", 2}, {"mediaType", kMediaTypeIndex}, {"manifests", manifests}});
}

ReferrerList join_referrers(ReferrerList before, const ReferrerList& added) {
  for (const ListedReferrer& each : added) {
    const auto same = [&](const ListedReferrer& known) { return known.manifest == each.manifest; };
    if (std::ranges::none_of(before, same)) before.push_back(each);
  }
  return before;
}

MadeReferrer make_referrer(const Descriptor& subject, std::string_view type, std::string_view blob,
                           const Json& annotations) {
  MadeReferrer made;
  made.config = descriptor_of(kMediaTypeEmpty, kEmptyConfig);
  made.layer = descriptor_of(type, blob);
  made.manifest = dump_json({{"schemaVersion", 2},
                             {"mediaType", kMediaTypeManifest},
                             {"artifactType", type},
                             {"config", to_json(made.config)},
                             {"layers", Json::array({to_json(made.layer)})},
                             {"subject", to_json(subject)},
                             {"annotations", annotations}});
  made.listed = {descriptor_of(kMediaTypeManifest, made.manifest), std::string(type),
                 dump_json(annotations)};
  return made;
}

}  // namespace kiln
