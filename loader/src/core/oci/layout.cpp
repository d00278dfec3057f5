// SPDX-License-Identifier: Apache-2.0
#include "oci/layout.hpp"

#include <set>
#include <utility>

#include "base/quote.hpp"
#include "documents/json.hpp"

namespace kiln {
namespace {

constexpr const char* kTagAnnotation = "org.opencontainers.image.ref.name";
constexpr const char* kVersionKey = "imageLayoutVersion";
constexpr std::string_view kLayoutVersion = "1.0.0";

constexpr std::string_view kRegistryAnnotation = "dev.kiln.registry";

std::string annotation_of(const JsonView& entry, std::string_view key) {
  if (!entry.has("annotations")) return {};
  return entry.at("annotations").string_or(key, "");
}

}  // namespace

std::string serialize_layout_marker() {
  return dump_json({{kVersionKey, kLayoutVersion}});
}

void check_layout_marker(std::string_view bytes, std::string_view subject) {
  const Json json = parse_json(bytes, subject);
  const JsonView view = JsonView(json, std::string(subject)).at(kVersionKey);
  if (view.string() != kLayoutVersion) {
    view.fail("is " + quote(view.string()) + ", expected " + quote(kLayoutVersion));
  }
}

std::vector<Tag> parse_layout_index(std::string_view bytes, std::string_view subject,
                                    Untagged untagged) {
  const Json json = parse_others_json(bytes, subject);
  std::vector<Tag> tags;
  std::set<std::string> names;
  for (const JsonView& entry : JsonView(json, std::string(subject)).items_of("manifests")) {
    std::string name = annotation_of(entry, kTagAnnotation);
    if (name.empty() && untagged == Untagged::kLeftOut) continue;
    if (!name.empty() && !names.insert(name).second) {
      entry.fail("has the tag " + quote(name) + ", as one before it");
    }
    tags.push_back(
        {std::move(name), parse_descriptor(entry), annotation_of(entry, kRegistryAnnotation)});
  }
  return tags;
}

std::string serialize_layout_index(const std::vector<Tag>& tags) {
  Json manifests = Json::array();
  for (const Tag& tag : tags) {
    Json entry = to_json(tag.descriptor);
    if (!tag.name.empty()) entry["annotations"][kTagAnnotation] = tag.name;
    if (!tag.registry.empty()) entry["annotations"][kRegistryAnnotation] = tag.registry;
    manifests.push_back(std::move(entry));
  }
  return dump_json(
      {{"schemaVersion", 2}, {"mediaType", kMediaTypeIndex}, {"manifests", std::move(manifests)}});
}

}  // namespace kiln
