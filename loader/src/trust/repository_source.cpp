// SPDX-License-Identifier: Apache-2.0
#include "trust/repository_source.hpp"

#include <nlohmann/json.hpp>

#include "base/base64.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "store/copy.hpp"
#include "trust/metadata.hpp"

namespace kiln::trust {
namespace {

constexpr const char* kKeyTitle = "org.opencontainers.image.title";
constexpr std::size_t kMaxLayers = 4096;

MetadataLayer parse_layer(const JsonView& view) {
  MetadataLayer layer{parse_descriptor(view), {}};
  if (!view.has("data")) return layer;
  const std::optional<std::string> data = decode_base64(view.at("data").string());
  if (!data) view.at("data").fail("is not base64");
  layer.data = *data;
  if (layer.data.size() != layer.descriptor.size ||
      Digest::of(layer.data) != layer.descriptor.digest) {
    view.at("data").fail("is not what the descriptor promises");
  }
  return layer;
}

std::map<std::string, MetadataLayer> parse_layers(std::string_view bytes,
                                                  const std::string& subject) {
  const Json json = parse_others_json(bytes, subject);
  const JsonView root(json, subject);
  std::map<std::string, MetadataLayer> layers;
  layers.emplace("", parse_layer(root.at("config")));
  const std::vector<JsonView> items = root.at("layers").items();
  if (items.size() > kMaxLayers) {
    root.at("layers").fail("has " + std::to_string(items.size()) + " layers, expected at most " +
                           std::to_string(kMaxLayers));
  }
  std::uint64_t left = kMaxTrustBytes;
  const auto count = [&](const JsonView& view, const MetadataLayer& layer) {
    if (layer.descriptor.size > left) {
      view.fail("promises more than the " + std::to_string(kMaxTrustBytes) +
                " bytes that trust metadata may have in all");
    }
    left -= layer.descriptor.size;
  };
  count(root.at("config"), layers.at(""));
  for (const JsonView& item : items) {
    const std::string title = item.at("annotations").at(kKeyTitle).string();
    const auto [layer, added] = layers.emplace(title, parse_layer(item));
    if (!added) item.fail("has the title of another one");
    count(item, layer->second);
  }
  return layers;
}

}  // namespace

std::map<std::string, MetadataLayer> parse_trust_manifest(std::string_view bytes,
                                                          const std::string& subject) try {
  return parse_layers(bytes, subject);
} catch (const Error& error) {
  throw Error(error.code(), "read trust metadata: " + std::string(error.what()) + kTellPublisher);
}

std::optional<std::string> RepositorySource::fetch(const std::string& file,
                                                   std::size_t most) const {
  if (!layers_) {
    const std::optional<Document> manifest = repository_.manifest(kTrustTag);
    layers_.emplace();
    if (manifest) {
      *layers_ = parse_trust_manifest(manifest->bytes, repository_.origin(manifest->descriptor));
    }
  }
  const auto found = layers_->find(file);
  if (found == layers_->end()) return std::nullopt;
  const auto& [descriptor, data] = found->second;
  if (descriptor.size > most) {
    throw Error(ErrorCode::kTrust, "fetch " + file + " from " + repository_.origin(descriptor) +
                                       ": it has " + std::to_string(descriptor.size) +
                                       " bytes, expected at most " + std::to_string(most) +
                                       ". Tell the registry's publisher");
  }
  return data.empty() ? read_document(repository_, descriptor, file, patience_) : data;
}

}  // namespace kiln::trust
