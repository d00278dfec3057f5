// SPDX-License-Identifier: Apache-2.0
#include "registry/server/push.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/join.hpp"
#include "base/shell_word.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "oci/tag.hpp"
#include "registry/folder/check.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/next_index.hpp"
#include "registry/folder/referrers.hpp"
#include "registry/folder/standing.hpp"
#include "registry/folder/trust_files.hpp"
#include "registry/server/upload.hpp"
#include "store/registry.hpp"
#include "trust/repository_source.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

/// A version to push, and what hangs on its index in the folder.
struct Outgoing {
  Submission submission;
  Layout layout = Layout("");
  Descriptor index = {};
  std::vector<HungReferrer> referrers = {};
};

/// One version on its way. plan() reads, and refuses before anything is sent; run() sends.
class VersionPush {
 public:
  VersionPush(Outgoing outgoing, const Destination& to, const Progress& progress)
      : submission_(std::move(outgoing.submission)),
        hung_(std::move(outgoing.referrers)),
        hung_on_(outgoing.index),
        layout_(std::move(outgoing.layout)),
        verify_all_(to.verify_all),
        progress_(progress),
        tag_(std::to_string(submission_.version)),
        upload_(to.registry, submission_.name, to.settings, to.patience, traffic_) {}

  void plan(const std::string& may_be_untested) {
    before_ = upload_.tagged(tag_);
    std::optional<Index> published;
    if (before_) {
      published = read_published_index(submission_.name, submission_.version, *before_,
                                       upload_.place(tag_));
    }
    next_ = next_index(submission_, published, may_be_untested);
  }

  /// Refuses to send a version that its signed metadata would not vouch for.
  void check_signed(const std::optional<trust::Target>& promised) const {
    if (promised && promised->promise.sha256() == next_.descriptor.digest) return;
    throw Error(ErrorCode::kTrust,
                "push " + submission_.subject() + ": " + upload_.place(tag_) + " would be index " +
                    next_.descriptor.digest.str() +
                    ", which the folder's metadata does not vouch for; nothing was sent. Run "
                    "'kiln registry sign'; where the server has variants that the folder lacks, "
                    "publish them into the folder first");
  }

  Pushed run() {
    const bool changed = before_ != next_.bytes;
    if (changed || verify_all_) {
      for (const Variant& variant : next_.index.variants) bring(variant);
      const std::string what = "index of " + submission_.subject();
      bring(next_.descriptor, Look::kClose, what, [&] {
        upload_.put_document(next_.descriptor.digest.str(), kMediaTypeIndex, next_.bytes, what);
      });
    }
    bring_referrers();
    if (changed) commit();
    progress_((changed ? "pushed " : "nothing to push for ") + submission_.subject() + " " +
              next_.descriptor.digest.str());
    result_.published = {submission_.name, submission_.version, next_.descriptor, next_.added,
                         next_.retested,   next_.unchanged,     changed};
    result_.requests = traffic_.requests;
    return result_;
  }

 private:
  /// Sees to it that the server has a variant: what it lacks is sent, if it was given here.
  void bring(const Variant& variant) {
    const std::string what = submission_.subject() + " " + variant.id;
    const BuiltVariant* const ours = given(variant.id);
    const VariantManifest documents =
        ours != nullptr ? ours->documents
                        : parse_manifest(upload_.read(variant.manifest, "manifest of " + what),
                                         "manifest of " + what);
    const Look look = look_at(variant.id);
    bring(documents.layer, look, "layer of " + what, [&] {
      check_given(ours, "layer of " + what);
      upload_.put_blob(documents.layer, body_of_file(ours->layer, documents.layer.size),
                       "layer of " + what);
    });
    if (documents.has_dev()) {
      bring(documents.dev, look, "dev layer of " + what, [&] {
        check_given(ours, "dev layer of " + what);
        upload_.put_blob(documents.dev, body_of_file(ours->dev, documents.dev.size),
                         "dev layer of " + what);
      });
    }
    bring(documents.config, look, "config of " + what, [&] {
      check_given(ours, "config of " + what);
      upload_.put_blob(documents.config, body_of(ours->config_bytes), "config of " + what);
    });
    bring(variant.manifest, look, "manifest of " + what, [&] {
      check_given(ours, "manifest of " + what);
      upload_.put_document(variant.manifest.digest.str(), kMediaTypeManifest, ours->manifest_bytes,
                           "manifest of " + what);
    });
  }

  /// kClose: every byte is read back and hashed.
  enum class Look { kThere, kClose };

  /// What nobody reads yet is looked at closely, though an earlier push may have sent it: that one
  /// may have been killed before it looked, or have ended because of what it saw.
  Look look_at(const std::string& id) const {
    const bool is_new = std::ranges::find(next_.added, id) != next_.added.end();
    return is_new || verify_all_ ? Look::kClose : Look::kThere;
  }

  /// What was sent is read back: a server may say that it has bytes, and have others.
  template <class Send>
  void bring(const Descriptor& descriptor, Look look, const std::string& what, const Send& send) {
    if (!brought_.insert(descriptor.digest).second) return;
    if (!upload_.has(descriptor, what)) {
      progress_("send " + what);
      send();
      look = Look::kClose;
      ++result_.blobs_sent;
      result_.bytes_sent += descriptor.size;
    }
    if (look == Look::kThere) return;
    upload_.verify(descriptor, what);
    ++result_.blobs_verified;
    result_.bytes_verified += descriptor.size;
  }

  /// What was signed about this index, before the tag moves: a client that requires it never sees
  /// the version without.
  void bring_referrers() {
    if (hung_.empty()) return;
    const Digest& subject = next_.descriptor.digest;
    if (hung_on_.digest != subject) {
      progress_("left " + std::to_string(hung_.size()) + " statements about " +
                hung_on_.digest.str() + ": with what the server has, " + submission_.subject() +
                " is " + subject.str());
      return;
    }
    ReferrerList ours;
    for (const HungReferrer& each : hung_) {
      const std::string what = "referrer " + each.listed.manifest.digest.str();
      const Look look = verify_all_ ? Look::kClose : Look::kThere;
      for (const Descriptor& blob : each.blobs) {
        bring(blob, look, "blob of " + what, [&] {
          upload_.put_blob(blob, body_of_file(layout_.blob_path(blob.digest), blob.size),
                           "blob of " + what);
        });
      }
      bring(each.listed.manifest, look, what, [&] {
        upload_.put_document(each.listed.manifest.digest.str(), kMediaTypeManifest, each.manifest,
                             what);
      });
      ours.push_back(each.listed);
    }
    list_referrers(subject, ours);
    result_.referrers = hung_.size();
  }

  /// A server that knows the API lists them by itself. For another, the push keeps the list, and
  /// loses nobody's entry.
  void list_referrers(const Digest& subject, const ReferrerList& ours) {
    if (const std::optional<ReferrerList> listed = upload_.referrers(subject)) {
      const std::size_t all = join_referrers(*listed, ours).size();
      // Of a list that is longer than what is read, it cannot be told.
      if (all == listed->size() || listed->size() >= kMostReferrers) return;
      throw Error(ErrorCode::kIntegrity,
                  "verify " + upload_.place(subject.str()) + ": the server lists " +
                      std::to_string(listed->size()) + " referrers and leaves out " +
                      std::to_string(all - listed->size()) +
                      " that it has; the version's tag was left alone. Push again; if it stays so, "
                      "tell the server's administrator");
    }
    const std::string tag = referrers_tag(subject);
    for (int again = 0;; ++again) {
      const std::optional<std::string> before = upload_.tagged(tag);
      const ReferrerList known =
          before ? parse_referrers(*before, upload_.place(tag)) : ReferrerList{};
      const ReferrerList all = join_referrers(known, ours);
      if (before && all == known) return;
      try {
        return upload_.move_tag(tag, kMediaTypeIndex, before, serialize_referrers(all));
      } catch (const Error& error) {  // somebody else added one meanwhile: read again, add again
        if (error.code() != ErrorCode::kConflict || again == kMostJoins) throw;
      }
    }
  }

  void commit() {
    for (const BuiltVariant& built : submission_.built) {
      const std::string tag = variant_tag(submission_.version, built.variant.id);
      if (upload_.tagged(tag) == built.manifest_bytes) continue;
      upload_.put_document(tag, kMediaTypeManifest, built.manifest_bytes, upload_.place(tag));
      result_.tags.push_back(tag);
    }
    upload_.move_tag(tag_, kMediaTypeIndex, before_, next_.bytes);
    result_.tags.push_back(tag_);
  }

  const BuiltVariant* given(const std::string& id) const {
    const auto found = std::ranges::find(submission_.built, id,
                                         [](const BuiltVariant& each) { return each.variant.id; });
    return found == submission_.built.end() ? nullptr : &*found;
  }

  void check_given(const BuiltVariant* ours, const std::string& what) const {
    if (ours != nullptr) return;
    throw Error(ErrorCode::kIntegrity,
                "push " + what + ": " + upload_.place(tag_) +
                    " names it, the registry does not have it, and it was not given here; the tag "
                    "was left alone. Push it from where it was published");
  }

  static constexpr int kMostJoins = 5;

  Submission submission_;
  std::vector<HungReferrer> hung_;
  Descriptor hung_on_;
  Layout layout_;
  bool verify_all_;
  const Progress& progress_;
  std::string tag_;
  Traffic traffic_;
  Upload upload_;
  std::optional<std::string> before_;  ///< the version's index there
  NextIndex next_;
  std::set<Digest> brought_;
  Pushed result_;
};

/// A folder's signed metadata on its way, after the versions that it names. plan() and run() as
/// above.
class MetadataPush {
 public:
  MetadataPush(fs::path folder, TrustFiles files, const Destination& to)
      : folder_(std::move(folder)),
        files_(std::move(files)),
        patience_(to.patience),
        upload_(to.registry, trust::kTrustRepository, to.settings, to.patience, traffic_) {}

  /// kTrust for what no client would accept; kConflict where the server has what the folder lacks.
  void plan() {
    ours_.emplace(follow(files_, kFolder, trust::Expiry::kRefused));
    before_ = upload_.tagged(trust::kTrustTag);
    if (!before_) return;
    const std::string place = upload_.place(trust::kTrustTag);
    theirs_ = read_trust_files(upload_.repository(), patience_, Roles::kAll);
    if (first_root_of(files_, kFolder) != first_root_of(theirs_, place)) {
      fail(place + " has another 1.root.json than the folder: it is another registry's",
           "Push to another place");
    }
    there_.emplace(follow(theirs_, place, kTold));
    const Standing standing = compare({files_, *ours_}, {theirs_, *there_});
    const std::string found = describe(standing, kFolder, place);
    if (standing.roles == Order::kApart || standing.roots == Order::kApart) {
      fail(found + ": they were signed apart", how_to_rejoin(standing, folder_));
    }
    if (standing.all() == Order::kSame || standing.all() == Order::kAhead) return;
    fail(found + ": it was signed elsewhere since",
         "Sign the folder again, on top of it: 'kiln registry sign --onto URL'");
  }

  /// What the folder says of a name. After plan().
  std::optional<trust::Target> promised(const std::string& name) {
    const std::optional<trust::SignedTarget> found = find_target(*ours_, files_, kFolder, name);
    return found ? std::optional(found->target) : std::nullopt;
  }

  /// The index that a client will look for under a name, unless the server's metadata names it by
  /// now. Nothing for what a publisher signed whose document no client takes.
  std::optional<Descriptor> newly_promised(const std::string& name) try {
    const std::optional<trust::Target> target = promised(name);
    const std::optional<Digest> digest = target ? target->promise.sha256() : std::nullopt;
    if (!digest) return std::nullopt;
    const std::optional<trust::SignedTarget> known =
        there_ ? find_target(*there_, theirs_, upload_.place(trust::kTrustTag), name)
               : std::nullopt;
    if (known && known->target.promise.sha256() == digest) return std::nullopt;
    return Descriptor{std::string(kMediaTypeIndex), *digest, target->length};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTrust) throw;
    return std::nullopt;
  }

  std::uint64_t run() {
    const TrustArtifact artifact = make_artifact(files_);
    if (before_ != artifact.manifest) {
      const std::set<Digest> there = named_before();
      for (const auto& [descriptor, bytes] : artifact.blobs) {
        if (there.contains(descriptor.digest)) continue;
        const std::string what = "trust metadata " + descriptor.digest.str();
        if (!upload_.has(descriptor, what)) upload_.put_blob(descriptor, body_of(bytes), what);
        upload_.verify(descriptor, what);
      }
      upload_.move_tag(trust::kTrustTag, kMediaTypeManifest, before_, artifact.manifest);
    }
    return ours_->timestamp()->version;
  }

 private:
  static constexpr trust::Expiry kTold = trust::Expiry::kTold;
  static constexpr const char* kFolder = "the folder";

  /// Blobs that clients fetch now, which the push before this one has read back.
  std::set<Digest> named_before() const {
    std::set<Digest> digests;
    if (!before_) return digests;
    for (const auto& [title, layer] :
         trust::parse_trust_manifest(*before_, upload_.place(trust::kTrustTag))) {
      digests.insert(layer.descriptor.digest);
    }
    return digests;
  }

  [[noreturn]] static void fail(const std::string& found, const std::string& next_step) {
    throw Error(ErrorCode::kConflict,
                "push trust metadata: " + found + "; nothing was sent. " + next_step);
  }

  fs::path folder_;
  TrustFiles files_;
  TrustFiles theirs_;
  Patience patience_;
  Traffic traffic_;
  Upload upload_;
  std::optional<trust::TrustedSet> ours_;
  std::optional<trust::TrustedSet> there_;
  std::optional<std::string> before_;  ///< the artifact's manifest there
};

void check_online(const Destination& to) {
  if (!to.settings.offline) return;
  throw Error(ErrorCode::kOffline, "push to " + to.registry +
                                       ": KILN_OFFLINE is set, so that no registry may be asked. "
                                       "Unset it");
}

/// Refuses metadata that names versions of the folder which the server would lack. Asks until it
/// knows enough of them. Of a package that the login may not push, nobody may say.
void check_left_behind(const fs::path& folder, const std::vector<Outgoing>& outgoing,
                       MetadataPush& metadata, const Destination& to, const Progress& progress) {
  constexpr std::size_t kMostNamed = 8;
  std::set<std::string> sent;
  for (const Outgoing& each : outgoing) {
    sent.insert(trust::target_name(each.submission.name, each.submission.version));
  }
  Traffic traffic;
  std::vector<std::string> lacking;
  for (const std::string& package : packages_of(folder)) {
    std::optional<Upload> upload;
    for (const Tag& tag : Layout(folder / package).read()) {
      const int version = version_of_tag(tag.name);
      const std::string name = trust::target_name(package, version);
      if (version == 0 || sent.contains(name) || lacking.size() > kMostNamed) continue;
      const std::optional<Descriptor> index = metadata.newly_promised(name);
      if (!index) continue;
      if (!upload) upload.emplace(to.registry, package, to.settings, to.patience, traffic);
      const std::string subject = label(package, version);
      try {
        if (!upload->has(*index, "index of " + subject)) lacking.push_back(subject);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kNetwork) throw;
        progress("whether the server has " + subject +
                 ", which the metadata names, is not known: " + error.what());
      }
    }
  }
  if (lacking.empty()) return;
  if (lacking.size() > kMostNamed) lacking.back() = "others";
  throw Error(ErrorCode::kTrust,
              "push to " + to.registry + ": the folder's metadata names " + join(lacking) +
                  ", which the server lacks; nothing was sent. Push them too, or name no package: "
                  "then all that the folder has is pushed");
}

std::vector<Pushed> push_all(std::vector<Outgoing> outgoing, const std::string& may_be_untested,
                             MetadataPush* metadata, const Destination& to,
                             const Progress& progress) {
  std::vector<std::unique_ptr<VersionPush>> pushes;
  pushes.reserve(outgoing.size());
  for (Outgoing& each : outgoing) {
    const std::string name = trust::target_name(each.submission.name, each.submission.version);
    pushes.push_back(std::make_unique<VersionPush>(std::move(each), to, progress));
    pushes.back()->plan(may_be_untested);
    if (metadata != nullptr) pushes.back()->check_signed(metadata->promised(name));
  }
  std::vector<Pushed> results;
  results.reserve(pushes.size());
  for (const auto& each : pushes) results.push_back(each->run());
  return results;
}

/// Says of a server that is signed which of the versions that were sent its metadata does not vouch
/// for as they are there now. Asks nothing where nothing was sent, and only to read: a login that
/// may push some packages need not be one that may push the metadata.
void tell_unsigned(const std::vector<Pushed>& versions, const Destination& to,
                   const Progress& progress) {
  const auto was_sent = [](const Pushed& each) { return each.published.changed; };
  if (std::ranges::none_of(versions, was_sent)) return;
  Traffic traffic;
  try {
    const TrustFiles files = read_trust_files(
        *open_place(to.registry, trust::kTrustRepository, to.settings, to.patience, traffic),
        to.patience, Roles::kAll);
    if (files.empty()) return;
    trust::TrustedSet set = follow(files, to.registry, trust::Expiry::kTold);
    for (const Pushed& each : versions) {
      const Published& one = each.published;
      const std::optional<trust::SignedTarget> found =
          find_target(set, files, to.registry, trust::target_name(one.name, one.version));
      if (found && found->target.promise.sha256() == one.index.digest) continue;
      progress("clients do not see this " + label(one.name, one.version) +
               " yet: the registry is signed, and its metadata does not speak of it. Sign it: "
               "'kiln registry sign --onto " +
               shell_word(to.registry) + "', then push again");
    }
  } catch (const Error& error) {  // the push itself went well
    if (error.code() == ErrorCode::kCancelled) throw;
    progress("what clients see is not known: " + std::string(error.what()));
  }
}

Outgoing outgoing_of(const Layout& layout, const std::string& name, const Tag& tag) {
  const int version = version_of_tag(tag.name);
  const std::string bytes = layout.read_blob(tag.descriptor, "index of " + label(name, version));
  const Index index = read_published_index(name, version, bytes, layout.index_path().string());
  Submission submission{name, version, {}, {}};
  for (const Variant& variant : index.variants) {
    submission.built.push_back(read_published(layout, index, variant));
    submission.tested.push_back(
        {variant.tested_on.empty() ? "" : variant.tested, variant.tested_on});
  }
  return {std::move(submission), layout, tag.descriptor, read_referrers(layout, tag.descriptor)};
}

/// The versions of a package that are wanted, in their order.
std::vector<Outgoing> outgoing_of(const fs::path& folder, const PackageVersions& wanted,
                                  const Progress& progress) {
  const Layout layout(folder / wanted.name);
  const std::vector<Tag> tags = version_tags(folder, wanted, "push", "nothing was sent");
  std::vector<Outgoing> outgoing;
  outgoing.reserve(tags.size());
  for (const Tag& tag : tags) {
    outgoing.push_back(outgoing_of(layout, wanted.name, tag));
    progress("checked " + outgoing.back().submission.subject());
  }
  return outgoing;
}

}  // namespace

PushReport push(const fs::path& folder, const std::vector<PackageVersions>& wanted,
                const Destination& to, const Progress& progress) {
  check_online(to);
  std::vector<PackageVersions> packages = wanted;
  const std::vector<std::string> names = packages_of(folder);
  if (packages.empty()) {
    for (const std::string& name : names) packages.push_back({name, 0});
  }
  if (packages.empty()) {
    throw Error(ErrorCode::kNotFound,
                "push " + folder.string() + ": it has no package. Publish into it first");
  }
  std::vector<Outgoing> outgoing;
  for (const PackageVersions& each : packages) {
    for (Outgoing& one : outgoing_of(folder, each, progress)) outgoing.push_back(std::move(one));
  }
  TrustFiles files = read_trust_files(folder);
  if (files.empty()) {
    PushReport report{push_all(std::move(outgoing), "*", nullptr, to, progress)};
    tell_unsigned(report.versions, to, progress);
    return report;
  }
  MetadataPush metadata(folder, std::move(files), to);
  metadata.plan();
  check_left_behind(folder, outgoing, metadata, to, progress);
  PushReport report{push_all(std::move(outgoing), "*", &metadata, to, progress)};
  report.timestamp = metadata.run();
  progress("pushed trust metadata, timestamp " + std::to_string(report.timestamp));
  return report;
}

std::vector<Pushed> publish_to(const PublishRequest& request, const Destination& to,
                               const Progress& progress) {
  check_online(to);
  std::vector<Outgoing> outgoing;
  for (Submission& submission : read_submissions(request.built, request.records, progress)) {
    outgoing.push_back({std::move(submission)});
  }
  std::vector<Pushed> pushed =
      push_all(std::move(outgoing), request.may_be_untested, nullptr, to, progress);
  tell_unsigned(pushed, to, progress);
  return pushed;
}

}  // namespace kiln::registry
