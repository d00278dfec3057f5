// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/trust_files.hpp"

#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/base64.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "store/copy.hpp"
#include "store/registry.hpp"
#include "trust/metadata_folder.hpp"
#include "trust/repository_source.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

/// Files up to this size are inside the manifest too, which saves a client their requests; but for
/// those of delegated roles, of which there may be hundreds, and a client wants one.
constexpr std::size_t kMostInside = 4096;

bool is_of_top(std::string_view file) {
  const std::string_view role = file.substr(file.find('.') + 1);
  return file == "timestamp.json" || role == "root.json" || role == "snapshot.json" ||
         role == "targets.json";
}

const std::string& file_of(const TrustFiles& files, const std::string& name,
                           const std::string& origin) {
  const auto found = files.find(name);
  if (found != files.end()) return found->second;
  throw Error(ErrorCode::kTrust,
              "read trust metadata of " + origin + ": it has no " + name +
                  ". Bring it back from a copy of the registry: clients have followed it");
}

void take_role(trust::TrustedSet& set, const TrustFiles& files, const std::string& origin,
               const std::string& role, const std::string& parent) {
  const std::uint64_t version = set.file_of(role).version;
  set.take_targets(file_of(files, role_file(version, role), origin), role, parent);
}

}  // namespace

Layout trust_layout(const fs::path& registry) {
  return Layout(registry / trust::kTrustRepository);
}

TrustFiles read_trust_files(const fs::path& registry) {
  if (!trust_layout(registry).exists()) return {};
  Traffic traffic;
  return read_trust_files(
      *open_folder(fs::absolute(registry).string(), trust::kTrustRepository, traffic), {},
      Roles::kAll);
}

TrustFiles read_trust_files(const Repository& repository, const Patience& patience, Roles roles) {
  TrustFiles files;
  const std::optional<Document> manifest = repository.manifest(trust::kTrustTag);
  if (!manifest) return files;
  const std::string origin = repository.origin(manifest->descriptor);
  for (const auto& [title, layer] : trust::parse_trust_manifest(manifest->bytes, origin)) {
    if (title.empty() || (roles == Roles::kTop && !is_of_top(title))) continue;
    files[title] = layer.data.empty() ? read_document(repository, layer.descriptor, title, patience)
                                      : layer.data;
  }
  return files;
}

std::string role_file(std::uint64_t version, const std::string& role) {
  return std::to_string(version) + "." + trust::file_name(role) + ".json";
}

const std::string& first_root_of(const TrustFiles& files, const std::string& origin) {
  return file_of(files, "1.root.json", origin);
}

trust::TrustedSet follow(const TrustFiles& files, const std::string& origin, trust::Expiry expiry) {
  trust::TrustedSet set(first_root_of(files, origin), origin, {std::time(nullptr), expiry});
  for (std::uint64_t next = 2;; ++next) {
    const auto found = files.find(role_file(next, "root"));
    if (found == files.end()) break;
    set.take_root(found->second);
  }
  set.check_root_is_fresh();
  set.take_timestamp(file_of(files, "timestamp.json", origin));
  set.check_timestamp_is_fresh();
  set.take_snapshot(
      file_of(files, role_file(set.timestamp()->snapshot.version, "snapshot"), origin));
  set.check_snapshot_is_fresh();
  take_role(set, files, origin, "targets", "root");
  return set;
}

Followed follow_all(const TrustFiles& files, const std::string& origin, trust::Expiry expiry) {
  Followed followed{follow(files, origin, expiry), {}};
  trust::TrustedSet& set = followed.set;
  std::vector<std::pair<std::string, std::string>> parents = {{"targets", "root"}};
  while (!parents.empty()) {
    const auto [parent, above] = std::move(parents.back());
    parents.pop_back();
    const trust::Targets targets = *set.targets(parent, above);
    for (const trust::Delegation& each : targets.delegations) {
      // One that has signed nothing yet.
      if (!set.snapshot()->files.contains(each.role)) continue;
      if (set.targets(each.role, parent) != nullptr) continue;
      try {
        take_role(set, files, origin, each.role, parent);
        parents.emplace_back(each.role, parent);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kTrust) throw;
        followed.passed.push_back({each, error});
      }
    }
  }
  return followed;
}

std::string describe_passed(const trust::PassedRole& passed) {
  return "clients do not learn what " + printable(passed.by.role) +
         " publishes: " + passed.why.what();
}

std::optional<trust::SignedTarget> find_target(trust::TrustedSet& set, const TrustFiles& files,
                                               const std::string& origin, const std::string& name) {
  const auto load = [&](const std::string& role, const std::string& parent) {
    if (set.targets(role, parent) != nullptr) return true;
    if (!set.snapshot()->files.contains(role)) return false;
    take_role(set, files, origin, role, parent);
    return true;
  };
  return set.search(name, load);
}

TrustArtifact make_artifact(const TrustFiles& files) {
  TrustArtifact artifact;
  const auto add = [&](std::string_view type, std::string_view bytes) {
    artifact.blobs.emplace_back(Descriptor{std::string(type), Digest::of(bytes), bytes.size()},
                                bytes);
    return to_json(artifact.blobs.back().first);
  };
  Json layers = Json::array();
  for (const auto& [name, bytes] : files) {
    Json layer = add(trust::kMediaTypeTrust, bytes);
    layer["annotations"] = {{"org.opencontainers.image.title", name}};
    if (is_of_top(name) && bytes.size() <= kMostInside) layer["data"] = encode_base64(bytes);
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
