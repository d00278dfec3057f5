// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/check.hpp"

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/quote.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "oci/tag.hpp"
#include "registry/folder/build_output.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/referrers.hpp"
#include "registry/folder/trust_files.hpp"
#include "settings/settings.hpp"
#include "store/registry.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

void attempt(CheckReport& report, const std::function<void()>& step) {
  try {
    step();
  } catch (const Error& error) {
    auto& seen = report.problems;
    if (std::ranges::find(seen, error.what()) == seen.end()) seen.emplace_back(error.what());
  }
}

void problem(CheckReport& report, const fs::path& what, const std::string& text) {
  report.problems.push_back("verify " + what.string() + ": " + text);
}

/// Also those that nothing names (a publish that was killed): a later publish would use them.
void check_every_blob(const Layout& layout, const std::string& name, CheckReport& report) {
  if (!fs::is_directory(layout.blobs_path())) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(layout.blobs_path())) {
    attempt(report, [&] {
      const Digest digest = Digest::parse("sha256:" + entry.path().filename().string());
      ++report.blobs;
      std::error_code no_file;  // which is said of it when it is opened
      layout.check_blob({"", digest, entry.file_size(no_file)}, "blob of " + name);
    });
  }
}

class PackageCheck {
 public:
  PackageCheck(const fs::path& registry, std::string name, CheckReport& report)
      : layout_(registry / name), name_(std::move(name)), report_(report) {}

  void run() {
    check_every_blob(layout_, name_, report_);
    std::error_code unknown;
    if (layout_.exists()) {
      ++report_.packages;
    } else if (const fs::path marker = layout_.folder() / "oci-layout";
               fs::exists(marker, unknown)) {
      registry::problem(report_, layout_.folder(),
                        layout_.index_path().string() + " is missing, expected it beside " +
                            marker.string() + ": the versions of " + name_ +
                            " are seen no more. Restore this file "
                            "from a copy, or publish the package again");
    }
    std::vector<Tag> tags;
    attempt([&] { tags = layout_.read(); });
    // The versions first: they say what the variants' tags must name.
    for (const bool indexes : {true, false}) {
      for (const Tag& tag : tags) {
        if (subject_of_tag(tag.name)) continue;
        if ((tag.descriptor.media_type == kMediaTypeIndex) != indexes) continue;
        attempt([&] { indexes ? check_version(tag) : check_variant_tag(tag); });
      }
    }
  }

 private:
  void attempt(const std::function<void()>& step) { registry::attempt(report_, step); }

  void problem(const std::string& text) { report_.problems.push_back(text); }

  void check_version(const Tag& tag) {
    const std::string what =
        "index " + name_ + (tag.name.empty() ? " (superseded)" : "@" + tag.name);
    const Index index = parse_index(layout_.read_blob(tag.descriptor, what), what);
    const bool superseded = tag.name.empty();
    if (index.name != name_ || (!superseded && std::to_string(index.version) != tag.name)) {
      problem("verify " + what + ": " + layout_.index_path().string() + " gives that name to " +
              label(index.name, index.version) + " (" + tag.descriptor.digest.str() + ")");
    }
    read_referrers(layout_, tag.descriptor);
    if (!superseded) ++report_.versions;
    for (const Variant& variant : index.variants) {
      if (!superseded) promised_[variant_tag(index.version, variant.id)] = variant.manifest;
      if (!superseded) ++report_.variants;
      attempt([&] { read_published(layout_, index, variant); });
    }
  }

  void check_variant_tag(const Tag& tag) {
    const auto found = promised_.find(tag.name);
    if (found == promised_.end() || found->second == tag.descriptor) return;
    problem("verify tag " + name_ + ":" + tag.name + ": " + layout_.index_path().string() +
            " names " + tag.descriptor.digest.str() + ", the index of its version says " +
            found->second.digest.str());
  }

  Layout layout_;
  std::string name_;
  CheckReport& report_;
  std::map<std::string, Descriptor> promised_;
};

/// What a client makes of the metadata, and what that says of each version, against what is there.
void check_signatures(const fs::path& registry, CheckReport& report) {
  std::optional<ClientView> view = view_as_client(registry);
  if (!view) return;
  const std::int64_t now = std::time(nullptr);
  for (const trust::PassedRole& each : view->listed.passed) {
    report.problems.push_back("list " + registry.string() + ": " + describe_passed(each));
  }
  for (const RoleState& each : view->roles) {
    if (each.expires > now) continue;
    report.problems.push_back("verify " + registry.string() + ": " + describe(each, now) +
                              "; clients refuse it. Run '" + how_to_renew(each, registry) + "'");
  }
  report.roles = std::move(view->roles);
  std::set<std::string> listed;
  for (const ListedVersion& each : list_registry(registry)) {
    const std::string name = trust::target_name(each.name, each.index.version);
    listed.insert(name);
    const auto found = view->listed.targets.find(name);
    const std::optional<Digest> says =
        found == view->listed.targets.end() ? std::nullopt : found->second.promise.sha256();
    if (says == each.descriptor.digest) continue;
    report.problems.push_back("verify " + label(each.name, each.index.version) + ": it is " +
                              each.descriptor.digest.str() + ", signed is " +
                              (says ? says->str() : "nothing") + ". Run 'kiln registry sign'");
  }
  for (const auto& [name, target] : view->listed.targets) {
    const std::optional<PackageVersions> version = version_of_target(name);
    const std::optional<Digest> says = target.promise.sha256();
    if (!version || !says || listed.contains(name)) continue;
    attempt(report, [&, &target = target] {
      check_is_elsewhere(Layout(registry / version->name), *version,
                         {std::string(kMediaTypeIndex), *says, target.length});
      report.elsewhere.push_back(version->text());
    });
  }
  if (!listed.empty() || report.elsewhere.empty()) return;
  problem(report, registry,
          "none of the versions that are signed is here, expected at least one. Restore the "
          "packages' folders from a copy, or publish the versions again");
}

/// Without its index.json, signed metadata is no longer seen. A folder from which all of it went is
/// told from one that was never signed by whoever trusts a root of it.
void check_metadata_is_listed(const fs::path& registry, CheckReport& report) {
  const Layout layout = trust_layout(registry);
  if (layout.exists()) return;
  std::error_code none;
  const bool is_left = !fs::is_empty(layout.blobs_path(), none) && !none;
  const Settings settings = load_settings();
  const std::string name = canonical_registry(fs::absolute(registry).string(), settings);
  if (!is_left && settings.trust.root_of(name) == nullptr) return;
  problem(report, registry,
          layout.index_path().string() + " is missing, expected " +
              (is_left ? "it beside the signed metadata that is there"
                       : "signed metadata, as a root of this registry is trusted here") +
              ": without it the registry passes for unsigned. Restore it from a copy, or sign the "
              "folder again, on top of what clients have");
}

/// A client takes what the index carries in the place of the blob, and refuses another one.
void check_carried(const std::string& carried, const std::string& blob, const std::string& what) {
  if (carried.empty() || carried == blob) return;
  throw Error(ErrorCode::kIntegrity,
              "check " + what + ": the index carries " + Digest::of(carried).str() + " (" +
                  std::to_string(carried.size()) + " bytes), its blob is " +
                  Digest::of(blob).str() + " (" + std::to_string(blob.size()) +
                  " bytes). Publish it again into an empty registry");
}

}  // namespace

VariantDocuments read_documents(const Layout& layout, const Index& index, const Variant& variant) {
  const std::string subject = label(index.name, index.version) + " " + variant.id;
  VariantDocuments read;
  read.manifest_bytes = layout.read_blob(variant.manifest, subject + " manifest");
  read.manifest = parse_manifest(read.manifest_bytes, subject + " manifest");
  read.config_bytes = layout.read_blob(read.manifest.config, subject + " config");
  return read;
}

BuiltVariant check_published(const Layout& layout, const Index& index, const Variant& variant,
                             VariantDocuments documents) {
  const std::string subject = label(index.name, index.version) + " " + variant.id;
  const VariantManifest& manifest = documents.manifest;
  layout.check_blob(manifest.layer, subject + " layer");
  if (manifest.has_dev()) layout.check_blob(manifest.dev, subject + " dev layer");
  BuiltVariant checked = check_variant(
      variant, std::move(documents.manifest_bytes), std::move(documents.config_bytes),
      {layout.blob_path(manifest.layer.digest), layout.blob_path(manifest.dev.digest)}, subject);
  check_carried(variant.carried.manifest, checked.manifest_bytes, "manifest of " + subject);
  check_carried(variant.carried.config, checked.config_bytes, "config of " + subject);
  check_agreement(index, variant, checked.config);
  return checked;
}

BuiltVariant read_published(const Layout& layout, const Index& index, const Variant& variant) {
  return check_published(layout, index, variant, read_documents(layout, index, variant));
}

void check_is_elsewhere(const Layout& layout, const PackageVersions& version,
                        const Descriptor& index) {
  if (!layout.open_blob(index.digest).valid()) return;
  try {
    const std::string what = "index of " + version.text();
    const Index found = parse_index(layout.read_blob(index, what), what);
    if (found.name != version.name || found.version != version.version) return;
  } catch (const Error& error) {  // damaged, or another document: nothing of this version
    if (error.code() != ErrorCode::kIntegrity) throw;
    return;
  }
  throw Error(ErrorCode::kIntegrity,
              "verify " + version.text() + ": signed is " + index.digest.str() +
                  ", which is here and which " + layout.index_path().string() +
                  " does not list. Restore this file from a copy, or publish the version again");
}

std::vector<ListedVersion> list_registry(const fs::path& registry) {
  return list_registry(registry, [](const Error&) { throw; });
}

std::vector<ListedVersion> list_registry(const fs::path& registry,
                                         const std::function<void(const Error&)>& damaged) {
  std::vector<ListedVersion> versions;
  const auto attempt = [&damaged](const auto& step) {
    try {
      step();
    } catch (const Error& error) {
      damaged(error);
    }
  };
  for (const std::string& name : packages_of(registry)) {
    const Layout layout(registry / name);
    std::vector<Tag> tags;
    attempt([&] { tags = layout.read(); });
    for (const Tag& tag : tags) {
      if (version_of_tag(tag.name) == 0) continue;
      const std::string what = "index " + name + "@" + tag.name;
      attempt([&] {
        versions.push_back(
            {name, tag.descriptor, parse_index(layout.read_blob(tag.descriptor, what), what)});
      });
    }
  }
  std::ranges::sort(versions, {}, [](const ListedVersion& listed) {
    return std::pair(listed.name, listed.index.version);
  });
  return versions;
}

CheckReport check_registry(const fs::path& registry, const Progress& progress) {
  CheckReport report;
  for (const std::string& name : packages_of(registry)) {
    progress("checking " + name);
    PackageCheck(registry, name, report).run();
  }
  // A client takes small metadata from its manifest; other tools copy the blobs.
  check_every_blob(Layout(registry / kTrustRepository), kTrustRepository, report);
  attempt(report, [&] { check_metadata_is_listed(registry, report); });
  if (report.packages == 0 && !trust_layout(registry).exists()) {
    problem(report, registry,
            "nothing is published in it, and no metadata is signed; expected a registry. Check the "
            "path, or publish into it first");
  }
  attempt(report, [&] { check_signatures(registry, report); });
  return report;
}

}  // namespace kiln::registry
