// SPDX-License-Identifier: Apache-2.0
#include "registry/server/export.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <set>
#include <system_error>

#include "base/draft.hpp"
#include "base/shell_word.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "nginx_conf.hpp"
#include "oci/tag.hpp"
#include "registry/folder/check.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/package_versions.hpp"
#include "registry/folder/referrers.hpp"
#include "registry/folder/standing.hpp"
#include "registry/folder/trust_files.hpp"
#include "trust/repository_source.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

bool same_bytes(const fs::path& left, const fs::path& right) {
  std::error_code error;
  if (fs::equivalent(left, right, error)) return true;
  if (!fs::exists(right) || fs::file_size(left) != fs::file_size(right)) return false;
  return digest_of_file(left) == digest_of_file(right);
}

/// A small file by way of a draft in `folder`. False: it has this text already.
bool write_changed(const fs::path& folder, const fs::path& to, std::string_view text) {
  if (fs::exists(to) && read_document(to, kMaxDocumentBytes) == text) return false;
  publish_bytes(folder, to, text, 0644);
  return true;
}

/// Makes a tag a link to the manifest of this digest in the same folder: nginx reads the digest out
/// of the link. In the place of what is there; false: it is this link already.
bool point(const fs::path& tag, const Digest& digest) {
  std::error_code error;
  if (fs::read_symlink(tag, error) == digest.str()) return false;
  const fs::path draft = tag.parent_path() / (".draft-" + unique_suffix());
  if (::symlink(digest.str().c_str(), draft.c_str()) != 0) fail_file("make link", draft, errno);
  if (::rename(draft.c_str(), tag.c_str()) != 0) {
    const int refused = errno;
    ::unlink(draft.c_str());
    fail_file("rename to", tag, refused);
  }
  sync_folder(tag.parent_path(), &fail_file);
  return true;
}

/// The files of one repository, written in the order in which they may become visible.
class RepositoryExport {
 public:
  RepositoryExport(const Layout& layout, fs::path folder, std::string name)
      : layout_(layout), folder_(std::move(folder)) {
    result_.name = std::move(name);
  }

  Exported run(const std::vector<Tag>& tags) {
    for (const char* part : {"blobs", "manifests", "indexes", "referrers", "tags"}) {
      make_folders(folder_ / part);
    }
    for (const Tag& tag : tags) {
      if (!subject_of_tag(tag.name)) put_by_digest(tag.descriptor);
    }
    // Before the version's tag: a client that requires signatures must not see it without them.
    for (const Tag& tag : tags) {
      if (const std::optional<Digest> subject = subject_of_tag(tag.name)) {
        put_referrers(*subject, tag);
      }
    }
    // A tag must not name what is not there yet; the index of a version comes after its variants.
    for (const bool indexes : {false, true}) {
      for (const Tag& tag : tags) {
        const bool is_index = tag.descriptor.media_type == kMediaTypeIndex;
        if (tag.name.empty() || is_index != indexes || subject_of_tag(tag.name)) continue;
        put_tag(tag);
      }
    }
    std::sort(result_.tags.begin(), result_.tags.end());
    put_text(folder_ / "tags" / "list",
             dump_json({{"name", result_.name}, {"tags", result_.tags}}));
    return result_;
  }

 private:
  /// What this document names, then the document: depth first.
  void put_by_digest(const Descriptor& descriptor) {
    if (!seen_.insert(descriptor.digest).second) return;
    const std::string what = result_.name + " " + descriptor.digest.str();
    const std::string bytes = layout_.read_blob(descriptor, what);
    if (descriptor.media_type == kMediaTypeIndex) {
      for (const Variant& variant : parse_index(bytes, what).variants) {
        put_by_digest(variant.manifest);
      }
    } else {
      const VariantManifest manifest = parse_manifest(bytes, what);
      put_blob(manifest.config);
      put_blob(manifest.layer);
      if (manifest.has_dev()) put_blob(manifest.dev);
    }
    put_manifest(descriptor);
  }

  /// The list both ways: as the answer to the API's request, and as the tag, for clients that do
  /// not ask.
  void put_referrers(const Digest& subject, const Tag& list) {
    for (const HungReferrer& each :
         read_referrers(layout_, {std::string(kMediaTypeIndex), subject, 0})) {
      for (const Descriptor& blob : each.blobs) put_blob(blob);
      put_manifest(each.listed.manifest);
    }
    put_file(list.descriptor.digest, folder_ / "referrers" / subject.str());
    put_tag(list);
  }

  void put_blob(const Descriptor& descriptor) {
    layout_.check_blob(descriptor, result_.name + " blob");
    put_file(descriptor.digest, folder_ / "blobs" / descriptor.digest.str());
  }

  // For an index, `indexes` first: found there it has the right type, found in `manifests` alone it
  // would be served as a plain manifest.
  void put_manifest(const Descriptor& descriptor) {
    const std::string name = descriptor.digest.str();
    if (descriptor.media_type == kMediaTypeIndex) {
      put_file(descriptor.digest, folder_ / "indexes" / name);
    }
    put_file(descriptor.digest, folder_ / "manifests" / name);
  }

  void put_tag(const Tag& tag) {
    if (!is_tag(tag.name)) {
      throw Error(ErrorCode::kIntegrity,
                  "export " + result_.name + ": '" + tag.name + "' in " +
                      layout_.index_path().string() +
                      " is not a tag, expected letters, digits, '.', '_', '-'. "
                      "Remove it from the layout");
    }
    put_manifest(tag.descriptor);
    if (tag.descriptor.media_type == kMediaTypeIndex) {
      put_link(folder_ / "indexes" / tag.name, tag.descriptor.digest);
    }
    put_link(folder_ / "manifests" / tag.name, tag.descriptor.digest);
    result_.tags.push_back(tag.name);
  }

  void put_link(const fs::path& tag, const Digest& digest) {
    if (point(tag, digest)) ++result_.files_written;
  }

  void put_file(const Digest& digest, const fs::path& to) {
    const fs::path from = layout_.blob_path(digest);
    if (!fs::is_symlink(to) && same_bytes(from, to)) return;
    if (!link_file(from, to)) {
      Draft copy(folder_, ".draft", to);
      stream_file(from, [&](std::string_view piece) { copy.write(piece); });
      copy.publish(0444);
    }
    ++result_.files_written;
  }

  void put_text(const fs::path& to, const std::string& text) {
    if (write_changed(folder_, to, text)) ++result_.files_written;
  }

  const Layout& layout_;
  fs::path folder_;
  Exported result_;
  std::set<Digest> seen_;
};

/// Signed metadata: as the artifact that Kiln reads, and as the plain files of a TUF repository.
class MetadataExport {
 public:
  /// `exported`: what is in the tree.
  MetadataExport(const ExportRequest& request, const fs::path& out, std::string name,
                 const std::set<Digest>& exported)
      : registry_(request.registry), out_(out), exported_(exported) {
    result_.name = std::move(name);
  }

  /// After the versions that it names.
  Exported run(const TrustFiles& files, const Progress& progress) {
    const auto [set, passed] = follow_all(files, registry_.string(), trust::Expiry::kRefused);
    for (const trust::PassedRole& each : passed) progress(describe_passed(each));
    put_targets(set, "targets", *set.targets());
    const TrustArtifact artifact = make_artifact(files);
    const fs::path folder = out_ / "v2" / result_.name;
    const fs::path plain = out_ / "metadata";
    for (const auto& [descriptor, bytes] : artifact.blobs) {
      put(folder / "blobs" / descriptor.digest.str(), bytes);
    }
    put(folder / "manifests" / artifact.descriptor.digest.str(), artifact.manifest);
    if (point(folder / "manifests" / trust::kTrustTag, artifact.descriptor.digest)) {
      ++result_.files_written;
    }
    put(folder / "tags" / "list",
        dump_json({{"name", result_.name}, {"tags", {trust::kTrustTag}}}));
    // The timestamp last: it names the others.
    for (const auto& [name, bytes] : files) {
      if (name != "timestamp.json") put(plain / name, bytes);
    }
    put(plain / "timestamp.json", files.at("timestamp.json"));
    result_.tags = {trust::kTrustTag};
    return result_;
  }

 private:
  void put_targets(const trust::TrustedSet& set, const std::string& role,
                   const trust::Targets& targets) {
    for (const auto& [name, target] : targets.targets) put_target(name, target);
    for (const Advisory& each : targets.advisories) put_advisory(each);
    for (const trust::Delegation& each : targets.delegations) {
      const trust::Targets* const below = set.targets(each.role, role);
      if (below != nullptr && seen_.insert(each.role).second) put_targets(set, each.role, *below);
    }
  }

  void put_advisory(const Advisory& advisory) {
    if (advisory.is_unread) return;  // its bytes are not known
    const std::string bytes = dump_json(to_json(advisory));
    put(out_ / "targets" / std::string(kAdvisoryPrefix) /
            (Digest::of(bytes).hex() + "." + advisory.id),
        bytes);
  }

  void put_target(const std::string& name, const trust::Target& target) {
    const std::optional<PackageVersions> version = version_of_target(name);
    const std::optional<Digest> digest = target.promise.sha256();
    // Others' targets, and versions that are signed here and kept elsewhere, are left out.
    if (!version || !digest) return;
    const Layout layout(registry_ / version->name);
    const Descriptor index{std::string(kMediaTypeIndex), *digest, target.length};
    if (!exported_.contains(*digest)) return check_is_elsewhere(layout, *version, index);
    if (!layout.has_blob(index)) return;
    put(out_ / "targets" / version->name / (digest->hex() + "." + std::to_string(version->version)),
        layout.read_blob(index, "index of " + name));
  }

  void put(const fs::path& to, std::string_view bytes) {
    make_folders(to.parent_path());
    if (write_changed(to.parent_path(), to, bytes)) ++result_.files_written;
  }

  fs::path registry_;
  fs::path out_;
  const std::set<Digest>& exported_;
  std::set<std::string> seen_;  ///< roles
  Exported result_;
};

/// The metadata that Kiln finds in a tree, under a repository's name.
TrustFiles artifact_of(const fs::path& folder) {
  const fs::path latest = folder / "manifests" / trust::kTrustTag;
  TrustFiles files;
  if (!fs::exists(latest)) return files;
  const std::string manifest = read_document(latest, kMaxDocumentBytes);
  for (const auto& [title, layer] : trust::parse_trust_manifest(manifest, latest.string())) {
    if (title.empty()) continue;
    const fs::path blob = folder / "blobs" / layer.descriptor.digest.str();
    files[title] = layer.data.empty() ? read_document(blob, trust::kMaxTargetsBytes) : layer.data;
  }
  return files;
}

/// The metadata that other clients find there, with older documents among it.
TrustFiles plain_files_of(const fs::path& folder) {
  TrustFiles files;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    if (entry.path().extension() != ".json") continue;
    files[entry.path().filename().string()] = read_document(entry.path(), trust::kMaxTargetsBytes);
  }
  return files;
}

/// Throws kConflict where a tree has signed metadata that these files would take back.
void check_tree(const ExportRequest& request, const fs::path& out, const std::string& name,
                const TrustFiles& files) {
  const auto fail = [&](const std::string& found, const std::string& next_step) {
    throw Error(ErrorCode::kConflict, "export-static into " + out.string() + ": " + found +
                                          "; nothing was written. " + next_step);
  };
  const trust::TrustedSet ours = follow(files, request.registry.string(), trust::Expiry::kRefused);
  const auto check = [&](const TrustFiles& there) {
    const trust::TrustedSet theirs = follow(there, out.string(), trust::Expiry::kTold);
    const Standing standing = compare({files, ours}, {there, theirs});
    if (standing.all() == Order::kSame || standing.all() == Order::kAhead) return;
    fail(
        describe(standing, request.registry.string(), "the tree") +
            ": what is served from there would go back",
        "Export the folder that has it all, sign this one on top of what is served: 'kiln registry "
        "sign --registry " +
            shell_word(request.registry.string()) + " --onto URL', or choose another --out");
  };
  const std::string& root = first_root_of(files, request.registry.string());
  const std::string here = role_file(1, "root");
  try {
    const TrustFiles artifact = artifact_of(out / "v2" / name);
    if (!artifact.empty() && first_root_of(artifact, out.string()) != root) {
      fail("it has another " + here + ", of another registry", "Choose another --out");
    }
    if (!artifact.empty()) check(artifact);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTrust && error.code() != ErrorCode::kIntegrity) throw;
    fail("whether it is newer cannot be told: " + std::string(error.what()),
         "Choose another --out");
  }
  // Of several registries in one tree the last has these files. An export that was killed among
  // them left what nobody follows.
  const TrustFiles plain = plain_files_of(out / "metadata");
  const auto first = plain.find(here);
  if (first == plain.end() || first->second != root) return;
  try {
    check(plain);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTrust) throw;
  }
}

void check_prefix(const std::string& prefix) {
  for (std::size_t begin = 0, end = 0; !prefix.empty() && end != prefix.npos; begin = end + 1) {
    end = prefix.find('/', begin);
    if (!is_package_name(std::string_view(prefix).substr(begin, end - begin))) {
      throw Error(ErrorCode::kUsage, "export-static: prefix '" + prefix +
                                         "' is not a repository name, expected lower-case words "
                                         "joined by '/', like 'kernels'");
    }
  }
}

/// The server block that serves the tree at `out`.
std::string nginx_conf(const fs::path& out) {
  std::string text = kNginxConf;
  for (std::size_t at = text.find("@OUT@"); at != std::string::npos; at = text.find("@OUT@")) {
    text.replace(at, 5, out.string());
  }
  return text;
}

}  // namespace

std::vector<Exported> export_static(const ExportRequest& request, const Progress& progress) {
  check_prefix(request.prefix);
  check_is_path(request.out, "export into");
  const fs::path out = absolute_path(request.out).lexically_normal();
  if (out.string().find_first_of("\"$@\\\n") != std::string::npos) {
    throw Error(ErrorCode::kUsage, "export-static: '" + out.string() +
                                       "' holds a character that has a meaning in nginx.conf "
                                       "(one of \" $ @ \\). Choose another folder");
  }
  check_is_outside(out, request.registry, "export-static");
  // Before the versions: what is published and signed meanwhile is not in it.
  const TrustFiles files = read_trust_files(request.registry);
  const std::string metadata =
      (request.prefix.empty() ? "" : request.prefix + "/") + std::string(trust::kTrustRepository);
  if (!files.empty()) check_tree(request, out, metadata, files);
  for (const char* part : {"v2", "metadata", "targets"}) sweep_drafts_below(out / part);
  sweep_drafts(out, ".nginx.conf");
  std::vector<Exported> results;
  std::set<Digest> exported;
  for (const std::string& package : packages_of(request.registry)) {
    const Layout layout(request.registry / package);
    if (!layout.exists()) continue;  // a first publish that has not committed
    const std::vector<Tag> tags = layout.read();
    for (const Tag& tag : tags) exported.insert(tag.descriptor.digest);
    const std::string name = request.prefix.empty() ? package : request.prefix + "/" + package;
    results.push_back(RepositoryExport(layout, out / "v2" / name, name).run(tags));
    progress("exported " + name + ": " + std::to_string(results.back().tags.size()) + " tags, " +
             std::to_string(results.back().files_written) + " files written");
  }
  if (!files.empty()) {
    results.push_back(MetadataExport(request, out, metadata, exported).run(files, progress));
    progress("exported " + metadata + ": " + std::to_string(results.back().files_written) +
             " files written");
  }
  make_folders(out);
  publish_bytes(out, out / "nginx.conf", nginx_conf(out), 0644);
  return results;
}

}  // namespace kiln::registry
