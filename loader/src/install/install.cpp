// SPDX-License-Identifier: Apache-2.0
#include "install/install.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "base/join.hpp"
#include "base/number.hpp"
#include "base/quote.hpp"
#include "documents/host.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "install/attested.hpp"
#include "install/lock.hpp"
#include "install/parallel.hpp"
#include "install/telling.hpp"
#include "kiln/error.hpp"
#include "probe/probe.hpp"
#include "resolve/rules.hpp"
#include "store/copy.hpp"
#include "store/unpack.hpp"
#include "verify/verify.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxOtherVersions = 8;  // that are tried for a hint

std::string checked_name(std::string_view name) {
  if (is_package_name(name)) return std::string(name);
  throw Error(ErrorCode::kUsage, "get kernel " + quote(name) +
                                     ": not a package name; expected words of a-z and 0-9 joined "
                                     "by '-', at most 64 characters");
}

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

std::string describe_refusal(const Resolution& refused) {
  return "no variant of " + label(refused.name, refused.version) + " fits for " +
         (refused.all_gpus ? "every GPU" : to_string(refused.device)) + " (" + refused.hint + ")";
}

std::vector<int> cached_versions(const Cache& cache, const std::string& registry,
                                 std::string_view name) {
  std::vector<int> versions;
  for (const Ref& ref : cache.refs()) {
    if (ref.registry == registry && ref.name == name) versions.push_back(ref.version);
  }
  return versions;
}

/// A line of its own, unless the text has it already.
void add_line(std::string& text, const std::string& line) {
  if (line.empty() || text.find(line) != std::string::npos) return;
  if (!text.empty() && text.back() != '\n') text += '\n';
  text += line;
}

}  // namespace

const Variant& Choice::variant() const {
  if (!resolution.chosen) throw Error(resolution.code, no_variant);
  return version.index.variants.at(*resolution.chosen);
}

Install::Install(std::string_view name, const Request& request, const InstallOptions& options)
    : name_(checked_name(name)),
      request_(request),
      settings_(load_settings()),
      lock_file_(options.hold_to_lock ? lockfile_of(request, settings_) : fs::path()),
      version_(request.version),
      from_(request.from.empty() ? "" : canonical_registry(request.from, settings_)),
      patience_{settings_.limits, telling(request.on_event), request.stop},
      cache_(request.cache.empty() ? settings_.cache : request.cache, request.stop,
             patience_.on_event),
      other_host_(options.host),
      driver_problem_(options.driver_problem) {
  check_not_telling(name_);
  request_.on_event = patience_.on_event;
  if (request.offline) settings_.offline = true;
  if (!lock_file_.empty()) {
    lock_ = locked_kernel(lock_file_, name_, request_, settings_);
    version_ = lock_->version;
    registry_ = lock_->registry;
  } else {
    registry_ = canonical_registry(request.registry, settings_);
    signed_ = is_signed(registry_, settings_);
  }
}

Installed Install::run() {
  // From the first look to the lease: gc takes nothing that was seen meanwhile.
  FileLock used = cache_.use();
  Choice choice = choose();
  choice.variant();  // throws where none was chosen, before anything is made
  if (!used.held() && !choice.version.fetched.empty()) used = cache_.use_to_write();
  Package package = unpack(pull(choice));
  remember(choice.version);
  FileLock lease = cache_.lease(package.manifest.config.digest);
  return {std::move(package), std::move(choice), traffic_, std::move(lease)};
}

DevFiles Install::run_dev() {
  FileLock used = cache_.use();
  check_version();
  Choice choice{.registry = registry_, .version = find_index(version_, request_.refresh)};
  const Index& index = choice.version.index;
  const std::string of = label(index.name, index.version) + " dev";
  const auto readable = std::ranges::find_if(
      index.variants, [](const Variant& variant) { return variant.unread.empty(); });
  if (readable == index.variants.end()) {
    throw Error(ErrorCode::kUpgrade, "install " + of + ": every variant needs a newer Kiln than " +
                                         KILN_VERSION + ". Install that one");
  }
  choice.resolution.chosen = static_cast<std::size_t>(readable - index.variants.begin());
  choice.resolution.device = Device::cpu();
  if (!used.held() && !choice.version.fetched.empty()) used = cache_.use_to_write();
  const Package package = pull(choice);
  const VariantManifest& manifest = package.manifest;
  if (!manifest.has_dev()) {
    throw Error(ErrorCode::kNotFound, "install " + of +
                                          ": the package has no headers; call its ops by name. "
                                          "'kiln info " +
                                          label(index.name, index.version) + "' lists them");
  }
  const Part part{of,
                  manifest.dev,
                  manifest.dev_unpacked_size,
                  package.config.dev_part(),
                  manifest.config.digest,
                  cache_.unpacked_path(manifest.dev.digest)};
  if (!unpack(part)) {
    const std::vector<DamagedFile> damaged = check_unpacked(part.folder, part.config);
    if (!damaged.empty()) {
      throw Error(ErrorCode::kIntegrity, "verify " + of + ": " + damaged.front().file.string() +
                                             " " + damaged.front().problem + ". " + kFetchAgain);
    }
  }
  remember(choice.version);
  return {index.name, index.version, part.folder, part.folder / "include"};
}

Choice Install::choose() {
  check_version();
  std::vector<Resolution> refused;
  std::string told;
  for (std::size_t i = 0;; ++i) {
    const Attempt tried = attempt(i);
    Choice choice = choose(find_index(tried.version, request_.refresh), tried.selection);
    if (choice.resolution.chosen || i == request_.fallback.size()) {
      if (!choice.resolution.chosen) choice.no_variant.insert(0, told);
      choice.refused = std::move(refused);
      return choice;
    }
    const std::string next = to_string(request_.fallback[i]);
    if (request_.on_event) {
      request_.on_event({Event::Stage::kFallback, label(name_, tried.version), 0, 0,
                         describe_refusal(choice.resolution) + "; trying fallback " + next});
    }
    told += choice.no_variant + "\nfallback " + next + ": ";
    refused.push_back(std::move(choice.resolution));
  }
}

/// The request itself, or the request changed by its n-th fallback alone. A pinned variant was
/// among what was refused.
Install::Attempt Install::attempt(std::size_t fallbacks) const {
  Attempt attempt{version_, selection_of(request_, settings_)};
  if (fallbacks == 0) return attempt;
  const Fallback& fallback = request_.fallback[fallbacks - 1];
  attempt.selection.variant.clear();
  if (fallback.kind == Fallback::Kind::kVersion) {
    attempt.version = fallback.version;
  } else {
    attempt.selection.device = Device::cpu();
    attempt.selection.all_gpus = false;
  }
  return attempt;
}

void Install::check_version() const {
  if (version_ > 0) return;
  std::string has;
  if (settings_.offline) {
    has = "offline, the cache has: " + listed(cached_versions(cache_, registry_, name_));
  } else {
    Traffic ignored;
    has = registry_ + " has: " +
          listed(open_repository(registry_, name_, settings_, patience_, ignored)->versions());
  }
  throw Error(ErrorCode::kUsage, "get kernel " + name_ + ": version is " +
                                     std::to_string(version_) +
                                     ", expected a published one, which pins the exact build; " +
                                     has + ". Ask for one of these");
}

// ---- find_index ----

VersionIndex Install::find_index(int version, bool ask) {
  if (lock_) {
    if (version != lock_->version) fail_other_version(lock_file_, name_, version, lock_->version);
    return locked_index();
  }
  std::optional<VersionIndex> known = recall_index(version);
  if (known && !ask) return *std::move(known);
  return ask_index(version, known ? &*known : nullptr);
}

VersionIndex Install::find_newest_index() {
  check_version();
  return find_index(version_, !settings_.offline);
}

/// The registry chose these bytes, so they must speak of what was asked for. Out of the cache they
/// are read at the start of every process, where the documents that they carry are mostly cached.
VersionIndex Install::read_index(Document document, int version, bool fetched) const {
  VersionIndex read{document.descriptor,
                    parse_index(document.bytes, "index " + label(name_, version),
                                fetched ? CarriedTexts::kRead : CarriedTexts::kLeft),
                    fetched ? std::move(document.bytes) : std::string()};
  if (read.index.name == name_ && read.index.version == version) return read;
  throw Error(ErrorCode::kIntegrity,
              "read index of " + label(name_, version) + ": it is the one of " +
                  label(read.index.name, read.index.version) + " (from " + registry_ +
                  "); nothing was loaded. Tell the registry's publisher");
}

/// By the registry's tag; or by its signed metadata, and then by digest.
VersionIndex Install::ask_document(int version) {
  const std::string what = "index of " + label(name_, version);
  const Repository& from = repository(what);
  if (!signed_) return read_index(from.index(version), version, true);
  Vouched vouched = vouch().ask(name_, version);
  std::optional<std::string> bytes = cached(vouched.index, what);
  if (!bytes) bytes = read_document(from, vouched.index, what, patience_);
  VersionIndex asked = read_index({std::move(vouched.index), *std::move(bytes)}, version, true);
  asked.signers = vouched.signers;
  return asked;
}

/// The cached one. Nothing if there is none, or a damaged one while the registry is asked anyway.
std::optional<VersionIndex> Install::recall_index(int version) {
  try {
    std::optional<Descriptor> index;
    std::optional<Digest> signers;
    if (signed_) {
      if (const std::optional<Vouched> vouched = vouch().recall(name_, version)) {
        index = vouched->index;
        signers = vouched->signers;
      }
    } else if (const std::optional<Ref> ref = cache_.read_ref(registry_, name_, version)) {
      index = ref->index;
    }
    if (!index) return std::nullopt;
    std::optional<std::string> bytes =
        cache_.read_document(*index, "index of " + label(name_, version));
    if (!bytes) return std::nullopt;
    VersionIndex known = read_index({*index, *std::move(bytes)}, version, false);
    known.signers = signers;
    return known;
  } catch (const Error& error) {
    if (!request_.refresh || error.code() != ErrorCode::kIntegrity) throw;
    return std::nullopt;
  }
}

/// What other signers said before, whose keys were perhaps stolen, holds nobody to anything.
VersionIndex Install::ask_index(int version, const VersionIndex* known) {
  const std::string what = label(name_, version);
  report(Event::Stage::kIndex, what, 0, 0);
  VersionIndex asked = ask_document(version);
  if (known != nullptr && known->signers == asked.signers) {
    check_only_grown(known->index, asked.index, registry_,
                     cache_.ref_path(registry_, name_, version));
  }
  report(Event::Stage::kIndex, what, asked.descriptor.size, asked.descriptor.size);
  return asked;
}

/// By digest: no tag is asked, and nobody can answer with another state of the version.
VersionIndex Install::locked_index() {
  const std::string package = label(name_, lock_->version);
  const std::string what = "index of " + package;
  if (std::optional<std::string> bytes = cached(lock_->index, what)) {
    return read_index({lock_->index, *std::move(bytes)}, lock_->version, false);
  }
  const Repository& from = repository(what);
  report(Event::Stage::kIndex, package, 0, lock_->index.size);
  try {
    std::string bytes = read_document(from, lock_->index, what, patience_);
    report(Event::Stage::kIndex, package, bytes.size(), lock_->index.size);
    return read_index({lock_->index, std::move(bytes)}, lock_->version, true);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    throw Error(ErrorCode::kLock, "lock " + package + ": " + lock_file_.string() + " names index " +
                                      lock_->index.digest.str() + ", which " +
                                      (from_.empty() ? registry_ : from_) + " does not have (" +
                                      error.what() +
                                      "). Run 'kiln lock' to take the one that it has");
  }
}

// ---- choose ----

Choice Install::choose(VersionIndex version, const Selection& selection) {
  Choice choice{.registry = registry_, .version = std::move(version)};
  choice.resolution = resolve(choice.version.index, selection);
  if (choice.resolution.chosen) return choice;
  std::string not_asked;
  if (choice.resolution.code != ErrorCode::kNoVariant) {
    // No variant would fit: it is the machine that lacks something.
  } else if (lock_) {
    not_asked = lock_file_.string() + " pins this index; 'kiln lock' takes newer ones";
  } else if (choice.version.fetched.empty()) {
    try {  // variants may have been added
      choice.version = ask_index(choice.version.index.version, &choice.version);
      choice.resolution = resolve(choice.version.index, selection);
    } catch (const Error& error) {
      const bool no_answer =
          error.code() == ErrorCode::kNetwork || error.code() == ErrorCode::kNotFound;
      if (!no_answer && error.code() != ErrorCode::kOffline) throw;
      not_asked = no_answer ? error.what() : "offline nothing is fetched";
    }
  }
  if (!choice.resolution.chosen) explain_none(choice, selection, not_asked);
  return choice;
}

Resolution Install::resolve(const Index& index, const Selection& selection) {
  if (!host_) {
    const bool for_gpu = request_.device.kind != Device::Kind::kCpu || request_.all_gpus;
    host_ = other_host_ != nullptr ? *other_host_ : probe_host(for_gpu);
    if (!driver_problem_.empty()) {
      host_->gpus.clear();
      host_->driver_problem = driver_problem_;
    }
  }
  look_up_libraries(index, selection);
  return kiln::resolve(*host_, index, selection);
}

/// The sonames that the choice depends on. Another machine's facts must speak of them all: this
/// machine's answer could differ from that one's.
void Install::look_up_libraries(const Index& index, const Selection& selection) {
  if (other_host_ == nullptr) {
    return probe_libraries(*host_, deciding_libraries(*host_, index, selection));
  }
  const std::string unknown = join(unknown_libraries(*host_, index));
  if (unknown.empty()) return;
  const std::string package = label(index.name, index.version);
  throw Error(ErrorCode::kUsage, "resolve " + package + ": the facts" +
                                     (host_->origin.empty() ? "" : " in " + host_->origin) +
                                     " do not say whether that machine has " + unknown +
                                     ". Write them there again with 'kiln host " + package +
                                     " --json'");
}

/// Every variant and its reason, the nearest one and what would make it fit, another version that
/// would do. `not_asked`: why the registry was not asked for newer builds; empty if it was. A GPU
/// that is not there, or a variant's name that the version does not have, needs no table.
void Install::explain_none(Choice& choice, const Selection& selection,
                           const std::string& not_asked) {
  const Index& index = choice.version.index;
  const Resolution& resolution = choice.resolution;
  const std::string subject = "resolve " + label(name_, index.version) + ": ";
  if (resolution.code != ErrorCode::kNoVariant) {
    choice.no_variant = choice.no_variant_brief = subject + resolution.hint;
    return;
  }
  const std::string head = subject + "no variant fits this machine (index " +
                           choice.version.descriptor.digest.brief() + " of " + registry_ + ")\n";
  const bool unknown = !selection.variant.empty() && !find_variant(index, selection.variant);
  std::string advice = resolution.hint;
  if (!request_.fallback.empty()) {  // the caller knows what to try instead
  } else if (!not_asked.empty()) {
    add_line(advice, "the registry was not asked for newer builds: " + not_asked);
  } else {
    try {
      add_line(advice, other_version(index.version, selection));
    } catch (const Error& error) {
      add_line(advice,
               "the registry was not asked for other versions: " + std::string(error.what()));
    }
  }
  choice.no_variant_brief = head + advice;
  choice.no_variant =
      unknown ? choice.no_variant_brief : head + resolution.explain() + "\n" + advice;
}

/// "geglu-mlp@3 has a build for this machine", or nothing.
std::string Install::other_version(int version, const Selection& selection) {
  const Repository& from = repository("versions of " + name_);
  Selection any = selection;
  any.variant.clear();
  std::vector<int> versions = from.versions();
  std::erase(versions, version);
  std::reverse(versions.begin(), versions.end());
  versions.resize(std::min(versions.size(), kMaxOtherVersions));
  for (const int other : versions) {
    try {
      const VersionIndex tried = read_index(from.index(other), other, true);
      const Resolution resolution = resolve(tried.index, any);
      if (!resolution.chosen) continue;
      return label(name_, other) +
             " has a build for this machine: " + tried.index.variants[*resolution.chosen].id +
             ". Ask for version " + std::to_string(other);
    } catch (const Error& error) {
      // An index that this Kiln cannot read is no help; a registry that is gone has no answer.
      if (error.code() == ErrorCode::kNetwork || error.code() == ErrorCode::kCancelled) throw;
    }
  }
  return {};
}

// ---- pull ----

Package Install::pull(const Choice& choice) {
  Package package = pull(choice.version, choice.variant());
  check_attested(choice, package);
  return package;
}

Package Install::pull(const VersionIndex& version, const Variant& variant) {
  const std::string of = label(name_, version.index.version) + " " + variant.id;
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
  package.folder = cache_.unpacked_path(package.manifest.config.digest);
  package.library = package.folder / package.config.library;
  return package;
}

void Install::pull_layers(const Package& package) {
  const VariantManifest& manifest = package.manifest;
  pull_layer(package);
  if (manifest.has_dev()) pull_layer(manifest.dev, package.subject + " dev");
}

fs::path Install::pull_layer(const Package& package) {
  return pull_layer(package.manifest.layer, package.subject);
}

fs::path Install::pull_layer(const Descriptor& layer, const std::string& of) {
  const std::string what = "layer of " + of;
  try {
    if (cache_.verify_blob(layer, what, kFetchAgain)) return cache_.blob_path(layer.digest);
  } catch (const Error& error) {
    if (!request_.refresh || error.code() != ErrorCode::kIntegrity) throw;
    cache_.drop_blob(layer.digest);
  }
  copy(repository(what), cache_, layer, what, patience_,
       [&](std::uint64_t done) { report(Event::Stage::kLayer, of, done, layer.size); });
  return cache_.blob_path(layer.digest);
}

std::string Install::document(const Descriptor& descriptor,
                              const std::function<std::string()>& carried, const std::string& what,
                              Event::Stage stage, const std::string& of) {
  if (std::optional<std::string> bytes = cached(descriptor, what)) return *std::move(bytes);
  if (std::string bytes = carried(); !bytes.empty()) {
    verify_bytes(bytes, descriptor,
                 {what, "the index, which carries it", "Tell the registry's publisher"});
    cache_.write_document(descriptor, bytes);
    return bytes;
  }
  return copy_document(repository(what), cache_, descriptor, what, patience_,
                       [&](std::uint64_t done) { report(stage, of, done, descriptor.size); });
}

/// What an index has of a variant's documents; of one that came out of the cache it is read now.
Carried Install::carried_by(const VersionIndex& version, const Variant& variant) const {
  if (!version.fetched.empty()) return variant.carried;
  const std::string what = "index of " + label(name_, version.index.version);
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
    return cache_.read_document(descriptor, what);
  } catch (const Error& error) {
    if (!request_.refresh || error.code() != ErrorCode::kIntegrity) throw;
    cache_.drop_blob(descriptor.digest);
    return std::nullopt;
  }
}

// ---- unpack ----

/// Whether a layer's files need no work. While refreshing, damaged ones do.
bool Install::is_unpacked(const Part& part) const {
  try {
    const fs::path relative = part.folder.lexically_relative(cache_.root());
    if (!open_folder_inside(cache_.root(), relative).valid()) return false;
  } catch (const Error& error) {
    if (!request_.refresh || error.code() != ErrorCode::kIntegrity) throw;
    return false;
  }
  return !request_.refresh || check_unpacked(part.folder, part.config).empty();
}

/// Whether it was done now: it may have been before, or another process was faster.
bool Install::unpack(const Part& part) {
  if (is_unpacked(part)) return false;
  const FileLock held = cache_.lock(part.lock);
  if (is_unpacked(part)) return false;
  cache_.make_folder("unpacked");
  std::error_code error;
  if (fs::symlink_status(part.folder, error).type() != fs::file_type::not_found) {
    drop_unpacked(part.folder);
  }
  const std::uint64_t layer = cache_.exists(part.layer) ? 0 : part.layer.size;
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() - layer;
  check_room(cache_.root(), layer + std::min(most, part.bytes), part.subject);
  const fs::path archive = pull_layer(part.layer, part.subject);
  report(Event::Stage::kUnpack, part.subject, 0, part.bytes);
  unpack_layer(archive, part.config, part.bytes, part.folder, part.subject);
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
  if (lock_) cache_.add_root(lock_file_);
  if (version.fetched.empty() && !lock_) return;
  if (!version.fetched.empty() && !cached(version.descriptor, "index of " + name_)) {
    cache_.write_document(version.descriptor, version.fetched);
  }
  cache_.write_ref({registry_, name_, version.index.version, version.descriptor, version.signers},
                   [&](const Ref& known) { return may_replace(known, version); });
}

bool Install::may_replace(const Ref& known, const VersionIndex& version) const {
  if (known.index == version.descriptor) return false;
  const std::string what = "index of " + label(name_, known.version);
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
  check_only_grown(*before, version.index, registry_,
                   cache_.ref_path(registry_, name_, known.version));
  return false;
}

// ---- what lock, bundle and has_kernel share ----

const Repository& Install::repository(std::string_view what) {
  // A folder or a bundle that the request names is no network.
  if (settings_.offline && !from_.starts_with('/')) {
    const std::string package = version_ > 0 ? label(name_, version_) : name_ + "@VERSION";
    throw Error(ErrorCode::kOffline,
                "fetch " + std::string(what) + ": it is not in the cache, and offline nothing is " +
                    "fetched (from " + registry_ + "). Run 'kiln install " + package +
                    "' online once, with the same cache and registry, or bring a bundle: " +
                    "'kiln install --from FILE'");
  }
  if (!repository_) {
    repository_ =
        open_repository(from_.empty() ? registry_ : from_, name_, settings_, patience_, traffic_);
  }
  return *repository_;
}

std::vector<Descriptor> Install::pull_metadata() {
  if (!signed_) return {};
  repository("trust metadata of " + registry_);
  return vouch().pull_metadata();
}

std::vector<attest::Attestation> Install::attestations(const VersionIndex& version) {
  const std::string what = "what was signed about " + label(name_, version.index.version);
  std::vector<attest::Attestation> known = attest::recall_attestations(cache_, version.descriptor);
  if (settings_.offline && !from_.starts_with('/')) return known;
  return attest::join_attestations(
      std::move(known),
      attest::pull_attestations(repository(what), version.descriptor, patience_).list);
}

void Install::check_attested(const Choice& choice, const Package& package) {
  const VersionIndex& version = choice.version;
  Attested attested(registry_, settings_, cache_);
  attested.check({label(name_, version.index.version), name_, version.descriptor, &package,
                  &choice.resolution},
                 [&](const std::string& what) {
                   return attest::pull_attestations(repository(what), version.descriptor,
                                                    patience_);
                 });
}

Vouch Install::vouch() {
  return {registry_, from_, settings_, cache_, patience_, traffic_};
}

void Install::check_installed(const Package& package) {
  if (package.just_unpacked) return;
  const std::string of = package.subject;
  const fs::path relative = package.folder.lexically_relative(cache_.root());
  if (open_folder_inside(cache_.root(), relative).valid()) {
    const ArchiveFile& library = library_file(package.config);
    const fs::path path = package.folder / library.path;
    const FileDescriptor file = open_inside(cache_.root(), relative / library.path);
    if (!file.valid()) fail_missing_library(path);
    StreamVerifier verifier({"", library.digest, library.size},
                            {"library of " + of, path.string(), kFetchAgain});
    read_pieces(file.get(), path, [&](std::string_view piece) { verifier.update(piece); });
    return verifier.finish();
  }
  // Not unpacked yet: install would do it, from the layer in the cache.
  const std::string what = "layer of " + of;
  if (!cache_.verify_blob(package.manifest.layer, what, kFetchAgain)) repository(what);
  if (::access(cache_.root().c_str(), W_OK) != 0) {
    fail_cache("unpack into", cache_.root(), errno);
  }
}

std::vector<int> Install::known_versions() {
  std::vector<int> versions;
  if (settings_.offline) versions = cached_versions(cache_, registry_, name_);
  if (!versions.empty()) return versions;
  versions = repository("versions of " + name_).versions();
  if (!versions.empty()) return versions;
  throw Error(ErrorCode::kNotFound, "find " + name_ + " in " + registry_ +
                                        ": no version of it is published. Check the registry");
}

std::vector<PublishedVersion> Install::published() {
  std::vector<PublishedVersion> versions;
  if (!signed_ || settings_.offline) {
    for (const int version : known_versions()) versions.push_back({version, {}});
    return versions;
  }
  const VouchedPackages packages = vouch().list();
  packages.check_is_known(name_);
  const auto found = packages.versions.find(name_);
  if (found == packages.versions.end()) {
    throw Error(ErrorCode::kNotFound, "find " + name_ + " in " + registry_ +
                                          ": its signed metadata does not speak of it. Check the "
                                          "name; 'kiln search' lists what it vouches for");
  }
  for (const VouchedVersion& each : found->second) versions.push_back({each.version, each.yanked});
  return versions;
}

int Install::newest_version() {
  const std::vector<PublishedVersion> versions = published();
  if (const int newest = newest_of(versions); newest != 0) return newest;
  throw Error(ErrorCode::kTrust, "find " + name_ + " in " + registry_ +
                                     ": its publisher took back every version; the newest: " +
                                     quote(*versions.back().yanked) + ". Ask its publisher");
}

void Install::report(Event::Stage stage, const std::string& of, std::uint64_t done,
                     std::uint64_t total) const {
  if (request_.on_event) request_.on_event({stage, of, done, total});
}

int newest_of(const std::vector<PublishedVersion>& versions) {
  int newest = 0;
  for (const PublishedVersion& each : versions) {
    if (!each.yanked) newest = std::max(newest, each.version);
  }
  return newest;
}

// ---- in one call ----

Installed install(std::string_view name, const Request& request, const InstallOptions& options) {
  return Install(name, request, options).run();
}

std::vector<Package> pull_all(std::string_view name, const Request& request,
                              const InstallOptions& options, const VersionIndex& version,
                              const std::vector<const Variant*>& variants, Layers layers) {
  std::vector<Package> packages(variants.size());
  std::atomic<std::size_t> next = 0;
  const std::size_t workers = std::min(variants.size(), kDownloadsAtOnce);
  const Observer on_event = one_at_a_time(request.on_event);
  in_parallel(workers, workers, request.stop, [&](std::size_t, const std::stop_token& stop) {
    Request own = request;  // each worker keeps a connection of its own
    own.on_event = on_event;
    own.stop = stop;
    Install install(name, own, options);
    for (std::size_t i = next++; i < variants.size(); i = next++) {
      packages[i] = install.pull(version, *variants[i]);
      if (layers == Layers::kPulled) install.pull_layers(packages[i]);
    }
  });
  return packages;
}

Selection selection_of(const Request& request, const Settings& settings) {
  Selection selection{request.device,   request.variant, request.allow_jit,
                      request.all_gpus, request.deny,    settings.tested};
  selection.deny.insert(selection.deny.end(), settings.deny.begin(), settings.deny.end());
  return selection;
}

std::string to_string(Fallback fallback) {
  return fallback.kind == Fallback::Kind::kCpu ? "cpu"
                                               : "version:" + std::to_string(fallback.version);
}

Fallback parse_fallback(std::string_view text) {
  constexpr std::string_view kPrefix = "version:";
  if (text == "cpu") return Fallback::cpu();
  if (text.starts_with(kPrefix)) {
    const int version = parse_version_number(text.substr(kPrefix.size()));
    if (version != 0) return Fallback::other_version(version);
  }
  throw Error(ErrorCode::kUsage, "fallback " + quote(text) + " is not cpu or version:N");
}

}  // namespace kiln
