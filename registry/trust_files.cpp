// SPDX-License-Identifier: Apache-2.0
#include "trust_files.hpp"

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "documents/json.hpp"
#include "http/credentials.hpp"
#include "kiln/error.hpp"
#include "store/copy.hpp"
#include "store/registry.hpp"
#include "trust/repository_source.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

/// Files up to this size are inside the manifest too, which saves a client their requests.
constexpr std::size_t kMostInside = 4096;

const std::string& file_of(const TrustFiles& files, const std::string& name,
                           const std::string& origin) {
  const auto found = files.find(name);
  if (found != files.end()) return found->second;
  throw Error(ErrorCode::kTrust, "read trust metadata of " + origin + ": it has no " + name +
                                     ". Sign the registry again: 'kiln registry sign'");
}

}  // namespace

Layout trust_layout(const fs::path& registry) {
  return Layout(registry / trust::kTrustRepository);
}

TrustFiles read_trust_files(const fs::path& registry) {
  if (!trust_layout(registry).exists()) return {};
  Traffic traffic;
  return read_trust_files(
      *open_folder(fs::absolute(registry).string(), trust::kTrustRepository, traffic), {});
}

TrustFiles read_trust_files(const Repository& repository, const Patience& patience) {
  TrustFiles files;
  const std::optional<Document> manifest = repository.manifest(trust::kTrustTag);
  if (!manifest) return files;
  const std::string origin = repository.origin(manifest->descriptor);
  for (const auto& [title, layer] : trust::parse_trust_manifest(manifest->bytes, origin)) {
    if (title.empty()) continue;
    files[title] = layer.data.empty() ? read_document(repository, layer.descriptor, title, patience)
                                      : layer.data;
  }
  return files;
}

trust::TrustedSet follow(const TrustFiles& files, const std::string& origin, trust::Expiry expiry) {
  trust::TrustedSet set(file_of(files, "1.root.json", origin), origin,
                        {std::time(nullptr), expiry});
  for (std::uint64_t next = 2;; ++next) {
    const auto found = files.find(std::to_string(next) + ".root.json");
    if (found == files.end()) break;
    set.take_root(found->second);
  }
  set.check_root_is_fresh();
  set.take_timestamp(file_of(files, "timestamp.json", origin));
  set.check_timestamp_is_fresh();
  set.take_snapshot(
      file_of(files, std::to_string(set.timestamp()->snapshot.version) + ".snapshot.json", origin));
  set.check_snapshot_is_fresh();
  set.take_targets(
      file_of(files, std::to_string(set.file_of("targets").version) + ".targets.json", origin),
      "targets", "root");
  return set;
}

bool is_ahead(const trust::TrustedSet& these, const trust::TrustedSet& those) {
  const trust::Root& before = these.root();
  const trust::Root& after = those.root();
  const bool was_replaced =
      after.version > before.version &&
      (after.timestamp != before.timestamp || after.snapshot != before.snapshot);
  return !was_replaced && these.timestamp()->version > those.timestamp()->version;
}

TrustArtifact make_artifact(const TrustFiles& files) {
  TrustArtifact artifact;
  const auto add = [&](std::string_view type, const std::string& bytes) {
    artifact.blobs.emplace_back(Descriptor{std::string(type), Digest::of(bytes), bytes.size()},
                                bytes);
    return to_json(artifact.blobs.back().first);
  };
  Json layers = Json::array();
  for (const auto& [name, bytes] : files) {
    Json layer = add(trust::kMediaTypeTrust, bytes);
    layer["annotations"] = {{"org.opencontainers.image.title", name}};
    if (bytes.size() <= kMostInside) layer["data"] = encode_base64(bytes);
    layers.push_back(std::move(layer));
  }
  artifact.manifest = dump_json({{"schemaVersion", 2},
                                 {"mediaType", kMediaTypeManifest},
                                 {"artifactType", trust::kArtifactTypeTrust},
                                 {"config", add("application/vnd.oci.empty.v1+json", "{}")},
                                 {"layers", layers}});
  artifact.descriptor = {std::string(kMediaTypeManifest), Digest::of(artifact.manifest),
                         artifact.manifest.size()};
  return artifact;
}

}  // namespace kiln::registry
