// SPDX-License-Identifier: Apache-2.0
#include "install/bundle.hpp"

#include <algorithm>
#include <functional>
#include <map>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/posix.hpp"
#include "documents/names.hpp"
#include "install/install.hpp"
#include "kiln/error.hpp"
#include "oci/archive.hpp"
#include "oci/layout.hpp"
#include "oci/referrers.hpp"
#include "oci/tag.hpp"
#include "trust/repository_source.hpp"
#include "verify/verify.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

/// A tar in which nothing but names and bytes is told.
class TarWriter {
 public:
  explicit TarWriter(const Draft& draft) : out_(checked(archive_write_new())), path_(draft.to()) {
    must(archive_write_set_format_ustar(out_.get()));
    must(archive_write_set_bytes_in_last_block(out_.get(), 1));
    must(archive_write_open_fd(out_.get(), draft.fd()));
  }

  /// Before what is in it: a folder that has no entry skopeo and podman make as root's, which only
  /// root may.
  void add_folder(const std::string& name) { begin(name, AE_IFDIR, 0755, 0); }

  /// `fill` calls its argument with all the bytes.
  using Fill = std::function<void(const Sink&)>;
  void add(const std::string& name, std::uint64_t size, const Fill& fill) {
    begin(name, AE_IFREG, 0444, size);
    fill([&](std::string_view piece) {
      if (archive_write_data(out_.get(), piece.data(), piece.size()) !=
          static_cast<la_ssize_t>(piece.size())) {
        fail_file("write", path_, archive_errno(out_.get()));
      }
    });
  }

  void finish() { must(archive_write_close(out_.get())); }

 private:
  void begin(const std::string& name, unsigned type, mode_t mode, std::uint64_t size) {
    const ArchiveEntry entry = new_entry();
    archive_entry_set_pathname(entry.get(), name.c_str());
    archive_entry_set_filetype(entry.get(), type);
    archive_entry_set_perm(entry.get(), mode);
    archive_entry_set_mtime(entry.get(), 0, 0);
    archive_entry_set_size(entry.get(), static_cast<la_int64_t>(size));
    must(archive_write_header(out_.get(), entry.get()));
  }

  void must(int result) {
    if (result != ARCHIVE_OK) fail_file("write", path_, archive_errno(out_.get()));
  }
  Archive out_;
  fs::path path_;
};

/// What a bundle has, in its order. The blobs are in the cache.
struct Contents {
  std::map<std::string, Descriptor> tags;
  std::map<std::string, std::string> registries;  // by tag: where a version comes from
  std::map<std::string, Descriptor> blobs;        // by file name

  void add(const Descriptor& descriptor) {
    blobs.emplace("blobs/sha256/" + descriptor.digest.hex(), descriptor);
  }

  std::string index_json() const {
    std::vector<Tag> list;
    for (const auto& [name, descriptor] : tags) {
      const auto from = registries.find(name);
      list.push_back({name, descriptor, from == registries.end() ? "" : from->second});
    }
    return serialize_layout_index(list);
  }
};

const Variant& variant_named(const VersionIndex& version, const std::string& id) {
  if (const Variant* const found = find_variant(version.index, id)) return *found;
  throw Error(ErrorCode::kNotFound, "bundle " + label(version.index.name, version.index.version) +
                                        ": there is no variant " + id + ", there are: " +
                                        join(version.index.variants, ", ", &Variant::id));
}

/// All, or those that the part names; none where resolve is to choose.
std::vector<const Variant*> named_variants(const BundlePart& part, const VersionIndex& version) {
  std::vector<const Variant*> named;
  if (part.all_variants) {
    for (const Variant& variant : version.index.variants) {
      if (variant.unread.empty()) named.push_back(&variant);
    }
  }
  for (const std::string& id : part.variants) named.push_back(&variant_named(version, id));
  return named;
}

/// Why signed metadata would not vouch for an index there; empty: it does, or the registry has
/// none.
std::string why_unvouched(Source& source, const VersionIndex& version) try {
  if (!source.is_signed) return {};
  if (!source.may_ask()) return "offline nobody is asked what was signed last";
  const Digest newest = source.vouch().ask(source.name, version.index.version).index.digest;
  if (newest == version.descriptor.digest) return {};
  return "another index of it is signed by now, " + newest.str();
} catch (const Error& error) {
  if (error.code() == ErrorCode::kCancelled) throw;
  return error.what();
}

/// What vouches for the versions, so that an install can verify them as from the registry.
void add_metadata(Install& install, Contents& contents) {
  const std::vector<Descriptor> pulled = install.source().pull_metadata();
  if (pulled.empty()) return;
  const std::string tag = std::string(trust::kTrustRepository) + ":" + trust::kTrustTag;
  const auto [known, added] = contents.tags.emplace(tag, pulled.front());
  if (!added && known->second != pulled.front()) {
    throw Error(ErrorCode::kUsage,
                "bundle: the kernels are of several signed registries, or one "
                "was just signed anew. Make one bundle for each, or try again");
  }
  for (const Descriptor& each : pulled) contents.add(each);
}

/// What was signed about the version, as the referrers that the registry has.
void add_attestations(Install& install, const std::string& name, const VersionIndex& version,
                      Contents& contents) {
  const Cache& cache = install.cache();
  const auto add = [&](std::string_view type, std::string_view bytes) {
    Descriptor descriptor{std::string(type), Digest::of(bytes), bytes.size()};
    cache.write_document(descriptor, bytes);
    contents.add(descriptor);
    return descriptor;
  };
  ReferrerList list;
  for (const attest::Attestation& each : install.source().attestations(version.descriptor)) {
    add(attest::kMediaTypeBundle, each.bundle);
    const Referrer referrer = parse_referrer(each.manifest, "referrer");
    if (referrer.config.digest != Digest::of(kEmptyConfig)) continue;  // none of these tools
    add(referrer.config.media_type, kEmptyConfig);
    list.push_back(
        {add(kMediaTypeManifest, each.manifest), std::string(attest::kMediaTypeBundle), ""});
  }
  if (list.empty()) return;
  std::ranges::sort(list, {},
                    [](const ListedReferrer& each) { return each.manifest.digest.hex(); });
  contents.tags.emplace(name + ":" + referrers_tag(version.descriptor.digest),
                        add(kMediaTypeIndex, serialize_referrers(list)));
}

BundledKernel add_part(const BundlePart& part, Contents& contents) {
  const InstallOptions options{.host = part.host ? &*part.host : nullptr};
  Install install(part.name, part.request, options);
  install.source().check_is_published("bundle");
  const FileLock used = install.cache().use_to_write();
  const bool chosen = !part.all_variants && part.variants.empty();
  Choice choice;
  if (chosen) choice = install.choose();
  const VersionIndex version = chosen ? choice.version : install.find_newest_index();
  std::vector<const Variant*> variants = named_variants(part, version);
  if (chosen) variants.push_back(&choice.variant());

  if (!version.fetched.empty()) {
    install.cache().write_document(version.descriptor, version.fetched);
  }
  const std::string tag = part.name + ":" + std::to_string(version.index.version);
  contents.tags.emplace(tag, version.descriptor);
  contents.registries.emplace(tag, install.registry());
  contents.add(version.descriptor);
  BundledKernel kernel{part.name, version.index.version, version.descriptor, {}};
  if (install.is_locked()) kernel.left_out = why_unvouched(install.source(), version);
  if (kernel.left_out.empty()) add_metadata(install, contents);
  add_attestations(install, part.name, version, contents);
  for (const Package& package :
       pull_all(part.name, part.request, options, version, variants, Layers::kPulled)) {
    contents.tags.emplace(tag + "-" + package.variant.id, package.variant.manifest);
    contents.add(package.variant.manifest);
    contents.add(package.manifest.config);
    contents.add(package.manifest.layer);
    if (package.manifest.has_dev()) contents.add(package.manifest.dev);
    kernel.variants.push_back(package.variant.id);
  }
  return kernel;
}

void write_tar(const Draft& draft, const Cache& cache, const Contents& contents) {
  TarWriter tar(draft);
  tar.add_folder("blobs");
  tar.add_folder("blobs/sha256");
  for (const auto& each : contents.blobs) {
    const Descriptor& descriptor = each.second;
    const std::string what = "blob " + descriptor.digest.str();
    tar.add(each.first, descriptor.size, [&](const Sink& sink) {
      // Hashed on its way: the cache is not trusted either.
      if (cache.verify_blob(descriptor, what, kFetchAgain, sink)) return;
      throw Error(ErrorCode::kNotFound, "read " + what + ": " + cache.origin(descriptor) +
                                            " is not there. " + kFetchAgain);
    });
  }
  const std::string index = contents.index_json();
  tar.add("index.json", index.size(), [&](const Sink& sink) { sink(index); });
  const std::string marker = serialize_layout_marker();
  tar.add("oci-layout", marker.size(), [&](const Sink& sink) { sink(marker); });
  tar.finish();
}

}  // namespace

std::vector<BundledKernel> create_bundle(const std::vector<BundlePart>& parts,
                                         const fs::path& file) {
  if (parts.empty()) throw Error(ErrorCode::kUsage, "bundle: no package is named");
  const fs::path target = followed_to_write(file);
  check_replaceable(target);
  const Cache cache(parts.front().request.cache, parts.front().request.stop);
  const FileLock used = cache.use_to_write();
  Contents contents;
  std::vector<BundledKernel> kernels;
  kernels.reserve(parts.size());
  for (const BundlePart& part : parts) kernels.push_back(add_part(part, contents));

  constexpr const char* kDraft = ".kiln-bundle";
  sweep_drafts(target.parent_path(), kDraft);
  Draft draft(target.parent_path(), kDraft, target, 0664);
  write_tar(draft, cache, contents);
  draft.publish();
  return kernels;
}

}  // namespace kiln
