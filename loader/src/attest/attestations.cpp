// SPDX-License-Identifier: Apache-2.0
#include "attest/attestations.hpp"

#include <algorithm>
#include <utility>

#include "base/posix.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "oci/referrers.hpp"
#include "store/copy.hpp"
#include "store/inside.hpp"
#include "verify/verify.hpp"

namespace kiln::attest {
namespace {

constexpr std::string_view kAttestedSchema = "kiln.attested/1";
constexpr const char* kAttestedFolder = "attested";

/// Throws kIntegrity unless the manifest is a referrer of `index` with one bundle.
Descriptor bundle_of(const std::string& manifest, const Descriptor& index,
                     const std::string& what) {
  const Referrer referrer = parse_referrer(manifest, what);
  if (!referrer.subject || referrer.subject->digest != index.digest) {
    throw Error(ErrorCode::kIntegrity, what + " has another subject");
  }
  if (referrer.layers.size() != 1 || referrer.layers.front().media_type != kMediaTypeBundle) {
    throw Error(ErrorCode::kIntegrity, what + " is not a sigstore bundle");
  }
  return referrer.layers.front();
}

Attestation read_attestation(std::string manifest, std::string bundle, const Descriptor& index,
                             const std::string& what) {
  Attestation read{std::move(manifest), std::move(bundle), {}, {}};
  read.envelope = parse_bundle(read.bundle, what);
  read.statement = parse_statement(read.envelope, what);
  if (!speaks_of(read.statement, index.digest)) {
    throw Error(ErrorCode::kIntegrity, what + " speaks of something else");
  }
  return read;
}

/// The budget of one index's attestations.
class Room {
 public:
  void take(const Descriptor& descriptor, std::uint64_t most, const std::string& what) {
    if (descriptor.size > most || descriptor.size > left_) {
      throw Error(ErrorCode::kIntegrity, what + " is too large");
    }
    left_ -= descriptor.size;
  }

 private:
  std::uint64_t left_ = kMostBytes;
};

/// Whether an error is about these bytes alone, and the next referrer may be another matter.
bool is_of_one(const Error& error) {
  return error.code() == ErrorCode::kIntegrity || error.code() == ErrorCode::kNotFound;
}

std::filesystem::path path_of(const Cache& cache, const Descriptor& index) {
  return cache.root() / kAttestedFolder / (index.digest.hex() + ".json");
}

}  // namespace

Attestations pull_attestations(const Repository& from, const Descriptor& index,
                               const Patience& patience) {
  ReferrerList listed = from.referrers(index);
  std::stable_partition(listed.begin(), listed.end(), [](const ListedReferrer& each) {
    return each.artifact_type == kMediaTypeBundle;
  });
  Attestations found;
  if (listed.size() > kMostOpened) {
    found.ignored.push_back(std::to_string(listed.size() - kMostOpened) + " of " +
                            std::to_string(listed.size()) + " referrers were not opened");
    listed.resize(kMostOpened);
  }
  Room room;
  for (const ListedReferrer& each : listed) {
    const std::string what = "referrer " + each.manifest.digest.brief();
    try {
      room.take(each.manifest, kMostManifestBytes, what);
      std::string manifest = read_document(from, each.manifest, what, patience);
      const Descriptor bundle = bundle_of(manifest, index, what);
      room.take(bundle, kMostBundleBytes, what);
      found.list.push_back(read_attestation(
          std::move(manifest), read_document(from, bundle, what, patience), index, what));
    } catch (const Error& error) {
      if (!is_of_one(error)) throw;
      found.ignored.emplace_back(error.what());
    }
  }
  return found;
}

std::vector<Attestation> join_attestations(std::vector<Attestation> before,
                                           const std::vector<Attestation>& added) {
  for (const Attestation& each : added) {
    const auto same = std::ranges::find(before, each.manifest, &Attestation::manifest);
    if (same == before.end()) before.push_back(each);
  }
  return before;
}

std::vector<Attestation> recall_attestations(const Cache& cache, const Descriptor& index) {
  const std::filesystem::path path = path_of(cache, index);
  std::vector<Attestation> list;
  try {
    const auto bytes = read_inside(cache.root(), path.lexically_relative(cache.root()));
    if (!bytes) return list;
    const Json json = parse_json(*bytes, path.string());
    const JsonView view(json, path.string());
    check_schema(view, kAttestedSchema, "");
    for (const JsonView& each : view.at("attestations").items()) {
      std::string manifest = each.at("manifest").string();
      const Descriptor bundle = bundle_of(manifest, index, each.path());
      std::string bytes_of_bundle = each.at("bundle").string();
      verify_bytes(bytes_of_bundle, bundle, {"bundle", path.string(), kFetchAgain});
      list.push_back(
          read_attestation(std::move(manifest), std::move(bytes_of_bundle), index, each.path()));
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCache) throw;
    list.clear();
  }
  return list;
}

void keep_attestations(const Cache& cache, const Descriptor& index,
                       const std::vector<Attestation>& list) {
  const std::vector<Attestation> before = recall_attestations(cache, index);
  std::vector<Attestation> kept = join_attestations(before, list);
  if (kept.size() == before.size()) return;
  if (kept.size() > kMostOpened) kept.resize(kMostOpened);
  Json attestations = Json::array();
  for (const Attestation& each : kept) {
    attestations.push_back({{"manifest", each.manifest}, {"bundle", each.bundle}});
  }
  const std::string text = dump_json({{"schema", kAttestedSchema}, {"attestations", attestations}});
  if (text.size() > kMaxDocumentBytes) return;
  try {
    const FileLock used = cache.use_to_write();
    cache.make_folder(kAttestedFolder);
    write_file(path_of(cache, index), text);
  } catch (const Error& error) {  // a read-only cache: they are fetched again where they are needed
    if (error.code() != ErrorCode::kCache) throw;
  }
}

}  // namespace kiln::attest
