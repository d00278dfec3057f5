// SPDX-License-Identifier: Apache-2.0
#include "install/install.hpp"

#include <algorithm>
#include <limits>
#include <system_error>
#include <utility>

#include "base/posix.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "install/lock.hpp"
#include "install/signature_policy.hpp"
#include "kiln/error.hpp"
#include "store/copy.hpp"
#include "store/unpack.hpp"
#include "verify/verify.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

/// A published version only grows. A variant that changed or went means that the registry, or
/// someone in front of it, answers with other bytes for the same version.
void check_only_grown(const Index& before, const Index& after, const std::string& registry,
                      const fs::path& ref) {
  const Variant* const lost = find_lost(before, after);
  if (lost == nullptr) return;
  const Variant* const now = find_variant(after, lost->id);
  throw Error(ErrorCode::kIntegrity,
              "verify index of " + label(before.name, before.version) + ": variant " + lost->id +
                  (now == nullptr ? " is gone, it was "
                                  : " is now " + now->manifest.digest.str() + ", it was ") +
                  lost->manifest.digest.str() + " (from " + registry +
                  "); a published version never changes, nothing was loaded. Tell the registry's "
                  "publisher; if you rebuilt it yourself, remove " +
                  ref.string());
}

}  // namespace

Install::Install(std::string_view name, const Request& request, const InstallOptions& options)
    : source_(name, request),
      request_(request),
      lock_file_(options.hold_to_lock ? lockfile_of(request, source_.settings) : fs::path()),
      deny_is_its_own_(options.deny_is_its_own),
      other_host_(options.host),
      driver_problem_(options.driver_problem) {
  request_.on_event = source_.patience.on_event;
  if (lock_file_.empty()) {
    source_.choose_registry(request.registry);
  } else {  // names the index itself: nobody need vouch for it here
    lock_ = locked_kernel(lock_file_, source_.name, request_, source_.settings);
    source_.version = lock_->version;
    source_.registry = lock_->registry;
    source_.is_signed = source_.settings.trust.root_of(source_.registry) != nullptr;
  }
}

Installed Install::run() {
  // From the first look to the lease: gc takes nothing that was seen meanwhile.
  FileLock used = source_.cache.use();
  Choice choice = choose();
  choice.variant();  // throws where none was chosen, before anything is made
  if (!used.held() && !choice.version.fetched.empty()) used = source_.cache.use_to_write();
  Package package = unpack(pull(choice));
  remember(choice.version);
  FileLock lease = source_.cache.lease(package.manifest.config.digest);
  return {std::move(package), std::move(choice), source_.traffic, std::move(lease)};
}

void Install::check_version() const {
  if (source_.version > 0) return;
  std::string has;
  if (source_.settings.offline) {
    has = "offline, the cache has: " + listed(source_.cached_versions());
  } else {
    Traffic ignored;
    has = source_.registry + " has: " +
          listed(open_repository(source_.registry, source_.name, source_.settings, source_.patience,
                                 ignored)
                     ->versions());
  }
  throw Error(ErrorCode::kUsage, "get kernel " + source_.name + ": version is " +
                                     std::to_string(source_.version) +
                                     ", expected a published one, which pins the exact build; " +
                                     has + ". Ask for one of these");
}

// ---- find_index ----

VersionIndex Install::find_index(int version, bool ask) {
  if (lock_) {
    if (version != lock_->version)
      fail_other_version(lock_file_, source_.name, version, lock_->version);
    VersionIndex locked = locked_index();
    // A lock file says which bytes, and lifts no advisory.
    if (source_.settings.trust.root_of(source_.registry) != nullptr) {
      locked.advisories = source_.vouch().recall_advisories(source_.name, version);
    }
    return locked;
  }
  std::optional<VersionIndex> known = source_.is_built ? std::nullopt : recall_index(version);
  if (known && !ask) {
    std::optional<VersionIndex> other = other_index(*known);
    return other ? *std::move(other) : *std::move(known);
  }
  return ask_index(version, known ? &*known : nullptr);
}

VersionIndex Install::find_newest_index() {
  check_version();
  return find_index(source_.version, !source_.settings.offline);
}

/// The registry chose these bytes, so they must speak of what was asked for. Out of the cache they
/// are read at the start of every process, where the documents that they carry are mostly cached.
VersionIndex Install::read_index(Document document, int version, bool fetched) const {
  VersionIndex read{document.descriptor,
                    parse_index(document.bytes, "index " + label(source_.name, version),
                                fetched ? CarriedTexts::kRead : CarriedTexts::kLeft),
                    fetched ? std::move(document.bytes) : std::string()};
  if (read.index.name == source_.name && read.index.version == version) return read;
  throw Error(ErrorCode::kIntegrity,
              "read index of " + label(source_.name, version) + ": it is the one of " +
                  label(read.index.name, read.index.version) + " (from " + source_.registry +
                  "); nothing was loaded. Tell the registry's publisher");
}

/// By the registry's tag; or by its signed metadata, and then by digest.
VersionIndex Install::ask_document(int version) {
  const std::string what = "index of " + label(source_.name, version);
  const Repository& from = source_.repository(what);
  if (!source_.is_signed) return read_index(from.index(version), version, true);
  SignedIndex vouched = source_.vouch().ask(source_.name, version);
  std::optional<std::string> bytes = cached(vouched.index, what);
  if (!bytes) bytes = read_document(from, vouched.index, what, source_.patience);
  VersionIndex asked = read_index({std::move(vouched.index), *std::move(bytes)}, version, true);
  asked.signers = vouched.signers;
  asked.advisories = std::move(vouched.advisories);
  return asked;
}

/// The cached one. Nothing if there is none, or a damaged one while the registry is asked anyway.
std::optional<VersionIndex> Install::recall_index(int version) {
  try {
    std::optional<Descriptor> index;
    std::optional<Digest> signers;
    std::vector<Advisory> advisories;
    if (source_.is_signed) {
      if (std::optional<SignedIndex> vouched = source_.vouch().recall(source_.name, version)) {
        index = vouched->index;
        signers = vouched->signers;
        advisories = std::move(vouched->advisories);
      }
    } else if (const std::optional<Ref> ref =
                   source_.cache.read_ref(source_.registry, source_.name, version)) {
      index = ref->index;
    }
    if (!index) return std::nullopt;
    std::optional<std::string> bytes =
        source_.cache.read_document(*index, "index of " + label(source_.name, version));
    if (!bytes) return std::nullopt;
    VersionIndex known = read_index({*index, *std::move(bytes)}, version, false);
    known.signers = signers;
    known.advisories = std::move(advisories);
    return known;
  } catch (const Error& error) {
    if (!request_.refresh || error.code() != ErrorCode::kIntegrity) throw;
    return std::nullopt;
  }
}

/// What other signers said before, whose keys were perhaps stolen, holds nobody to anything.
VersionIndex Install::ask_index(int version, const VersionIndex* known) {
  const std::string what = label(source_.name, version);
  report(Event::Stage::kIndex, what, 0, 0);
  VersionIndex asked = ask_document(version);
  if (known != nullptr && known->signers == asked.signers) {
    check_only_grown(known->index, asked.index, source_.registry,
                     source_.cache.ref_path(source_.registry, source_.name, version));
  }
  report(Event::Stage::kIndex, what, asked.descriptor.size, asked.descriptor.size);
  return asked;
}

/// Of a folder of this machine that has the version in other bytes than the cache: it was built and
/// published anew. Throws unless others sign it now. Nothing where the folder has those bytes,
/// which one call of the kernel says, or says nothing of the version.
std::optional<VersionIndex> Install::other_index(const VersionIndex& known) {
  const int version = known.index.version;
  const bool says_which = source_.from.empty() ? !source_.settings.offline : !source_.is_signed;
  if (!source_.place().starts_with('/') || !says_which) return std::nullopt;
  try {
    const std::string what = "index of " + label(source_.name, version);
    if (source_.repository(what).exists(known.descriptor)) return std::nullopt;
    VersionIndex other = ask_document(version);
    if (other.signers != known.signers) return other;
    if (!grows_from(other.index, known.index)) {  // else it is an older state
      check_only_grown(known.index, other.index, source_.registry,
                       source_.cache.ref_path(source_.registry, source_.name, version));
    }
  } catch (const Error& error) {
    const bool says_nothing =
        error.code() == ErrorCode::kNotFound || error.code() == ErrorCode::kNetwork;
    if (!says_nothing) throw;
  }
  return std::nullopt;
}

/// By digest: no tag is asked, and nobody can answer with another state of the version.
VersionIndex Install::locked_index() {
  const std::string package = label(source_.name, lock_->version);
  const std::string what = "index of " + package;
  if (std::optional<std::string> bytes = cached(lock_->index, what)) {
    return read_index({lock_->index, *std::move(bytes)}, lock_->version, false);
  }
  const Repository& from = source_.repository(what);
  report(Event::Stage::kIndex, package, 0, lock_->index.size);
  try {
    std::string bytes = read_document(from, lock_->index, what, source_.patience);
    report(Event::Stage::kIndex, package, bytes.size(), lock_->index.size);
    return read_index({lock_->index, std::move(bytes)}, lock_->version, true);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    throw Error(ErrorCode::kLock, "lock " + package + ": " + lock_file_.string() + " names index " +
                                      lock_->index.digest.str() + ", which " +
                                      (source_.from.empty() ? source_.registry : source_.from) +
                                      " does not have (" + error.what() + "). Run 'kiln lock" +
                                      lock_option(lock_file_) + "' to take the one that it has");
  }
}

// ---- pull ----

Package Install::pull(const Choice& choice) {
  Package package = pull(choice.version, choice.variant());
  check_attested(choice, package);
  return package;
}

Package Install::pull(const VersionIndex& version, const Variant& variant) {
  const std::string of = label(source_.name, version.index.version) + " " + variant.id;
  Package package{.subject = of, .variant = variant};
  const auto carried = [&](std::string Carried::*text) {
    return [&, text] { return carried_by(version, variant).*text; };
  };
  package.manifest = parse_manifest(document(variant.manifest, carried(&Carried::manifest),
                                             "manifest of " + of, Event::Stage::kManifest, of),
                                    "manifest of " + of);
  package.config = parse_config(document(package.manifest.config, carried(&Carried::config),
                                         "config of " + of, Event::Stage::kConfig, of),
                                "config of " + of);
  check_agreement(version.index, variant, package.config);
  if (lock_) check_locked(lock_file_, *lock_, package);
  package.folder = source_.cache.unpacked_path(package.manifest.config.digest);
  package.library = package.folder / package.config.library;
  return package;
}

void Install::pull_layers(const Package& package) {
  const VariantManifest& manifest = package.manifest;
  pull_layer(package);
  if (manifest.has_dev()) pull_layer(manifest.dev, package.subject + " dev", true);
}

fs::path Install::pull_layer(const Package& package) {
  return pull_layer(package.manifest.layer, package.subject);
}

fs::path Install::pull_layer(const Descriptor& layer, const std::string& of, bool dev) {
  const std::string what = "layer of " + of;
  try {
    if (source_.cache.verify_blob(layer, what, kFetchAgain))
      return source_.cache.blob_path(layer.digest);
  } catch (const Error& error) {
    if (!request_.refresh || error.code() != ErrorCode::kIntegrity) throw;
    source_.cache.drop_blob(layer.digest);
  }
  copy(source_.repository(what, dev), source_.cache, layer, what, source_.patience,
       [&](std::uint64_t done) { report(Event::Stage::kLayer, of, done, layer.size); });
  return source_.cache.blob_path(layer.digest);
}

std::string Install::document(const Descriptor& descriptor,
                              const std::function<std::string()>& carried, const std::string& what,
                              Event::Stage stage, const std::string& of) {
  if (std::optional<std::string> bytes = cached(descriptor, what)) return *std::move(bytes);
  if (std::string bytes = carried(); !bytes.empty()) {
    verify_bytes(bytes, descriptor,
                 {what, "the index, which carries it", "Tell the registry's publisher"});
    source_.cache.write_document(descriptor, bytes);
    return bytes;
  }
  return copy_document(source_.repository(what), source_.cache, descriptor, what, source_.patience,
                       [&](std::uint64_t done) { report(stage, of, done, descriptor.size); });
}

/// What an index has of a variant's documents; of one that came out of the cache it is read now.
Carried Install::carried_by(const VersionIndex& version, const Variant& variant) const {
  if (!version.fetched.empty()) return variant.carried;
  const std::string what = "index of " + label(source_.name, version.index.version);
  const std::optional<std::string> bytes = cached(version.descriptor, what);
  if (!bytes) return {};
  const Index index = parse_index(*bytes, what);
  const Variant* const found = find_variant(index, variant.id);
  return found == nullptr ? Carried{} : found->carried;
}

/// A document of the cache. While refreshing, a damaged one is removed and counts as missing.
std::optional<std::string> Install::cached(const Descriptor& descriptor,
                                           const std::string& what) const {
  try {
    return source_.cache.read_document(descriptor, what);
  } catch (const Error& error) {
    if (!request_.refresh || error.code() != ErrorCode::kIntegrity) throw;
    source_.cache.drop_blob(descriptor.digest);
    return std::nullopt;
  }
}

// ---- unpack ----

/// Whether a layer's files need no work. While refreshing, damaged ones do.
bool Install::is_unpacked(const Part& part) const {
  try {
    const fs::path relative = part.folder.lexically_relative(source_.cache.root());
    if (!open_folder_inside(source_.cache.root(), relative).valid()) return false;
  } catch (const Error& error) {
    if (!request_.refresh || error.code() != ErrorCode::kIntegrity) throw;
    return false;
  }
  return !request_.refresh || check_unpacked(part.folder, part.config).empty();
}

/// Whether it was done now: it may have been before, or another process was faster.
bool Install::unpack(const Part& part) {
  if (is_unpacked(part)) return false;
  const FileLock held = source_.cache.lock(part.lock);
  if (is_unpacked(part)) return false;
  source_.cache.make_folder("unpacked");
  std::error_code error;
  if (fs::symlink_status(part.folder, error).type() != fs::file_type::not_found) {
    drop_unpacked(part.folder);
  }
  const std::uint64_t layer = source_.cache.missing_bytes(part.layer);
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() - layer;
  check_room(source_.cache.root(), layer + std::min(most, part.bytes), part.subject);
  const fs::path archive = pull_layer(part.layer, part.subject, part.dev);
  report(Event::Stage::kUnpack, part.subject, 0, part.bytes);
  unpack_layer(archive, part.config, part.bytes, part.folder, part.subject, source_.patience.stop);
  report(Event::Stage::kUnpack, part.subject, part.bytes, part.bytes);
  return true;
}

Package Install::unpack(Package package) {
  const VariantManifest& manifest = package.manifest;
  package.just_unpacked = unpack({package.subject, manifest.layer, manifest.unpacked_size,
                                  package.config, manifest.config.digest, package.folder});
  return package;
}

// ---- remember ----

/// Which index this version is. Last of all: a ref promises a version that is here. What is there
/// may have been written meanwhile by an install that saw a newer index: a ref only grows.
void Install::remember(const VersionIndex& version) {
  if (lock_) source_.cache.keep_lock_file(lock_file_);
  if (source_.is_built) return;
  if (version.fetched.empty() && !lock_) return list_again(version);
  if (!version.fetched.empty() && !cached(version.descriptor, "index of " + source_.name)) {
    source_.cache.write_document(version.descriptor, version.fetched);
  }
  write_ref(version);
}

void Install::write_ref(const VersionIndex& version) {
  source_.cache.write_ref(
      {source_.registry, source_.name, version.index.version, version.descriptor, version.signers},
      [&](const Ref& known) { return may_replace(known, version); });
}

/// A signed version needs no ref to be found, so that it may be here without one, which was damaged
/// and removed. A cache that cannot be written serves it all the same.
void Install::list_again(const VersionIndex& version) {
  const int number = version.index.version;
  if (stands(source_.cache.ref_path(source_.registry, source_.name, number), &fail_cache)) return;
  try {
    write_ref(version);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCache) throw;
    if (!request_.on_event) return;
    const std::string package = label(source_.name, number);
    request_.on_event({Event::Stage::kWarning, package, 0, 0,
                       "it is here, and not in the cache's list: " + std::string(error.what())});
  }
}

bool Install::may_replace(const Ref& known, const VersionIndex& version) const {
  if (known.index == version.descriptor) return false;
  const std::string what = "index of " + label(source_.name, known.version);
  std::optional<Index> before;
  try {
    if (const auto bytes = cached(known.index, what)) before = parse_index(*bytes, what);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIntegrity) throw;  // damaged: it promises nothing
  }
  if (!before || grows_from(*before, version.index)) return true;
  // Ours is an older state: a lock file may pin one, and another install may have been faster.
  if (lock_ || grows_from(version.index, *before)) return false;
  if (known.signers != version.signers) return true;  // others' word, or nobody's
  check_only_grown(*before, version.index, source_.registry,
                   source_.cache.ref_path(source_.registry, source_.name, known.version));
  return false;
}

void Install::check_attested(const Choice& choice, const Package& package) {
  const VersionIndex& version = choice.version;
  const SignaturePolicy policy(source_.registry, source_.settings, source_.cache);
  policy.check({label(source_.name, version.index.version), source_.name, version.descriptor,
                &package, &choice.resolution},
               [&](const std::string& what) {
                 return attest::pull_attestations(source_.repository(what), version.descriptor,
                                                  source_.patience);
               });
}

void Install::report(Event::Stage stage, const std::string& of, std::uint64_t done,
                     std::uint64_t total) const {
  if (request_.on_event) request_.on_event({stage, of, done, total});
}

// ---- in one call ----

Installed install(std::string_view name, const Request& request, const InstallOptions& options) {
  return Install(name, request, options).run();
}

}  // namespace kiln
