// SPDX-License-Identifier: Apache-2.0
#include "registry/site/pull_api.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/join.hpp"
#include "base/number.hpp"
#include "base/percent_encoded.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "oci/referrers.hpp"
#include "oci/tag.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/trust_files.hpp"

namespace kiln::registry {
namespace {

constexpr const char* kJsonType = "application/json";

Answer refused(int status, const char* code, const std::string& message) {
  // What was asked for stands in the message, and need not be UTF-8.
  return {
      status, kJsonType,
      dump_json({{"errors", Json::array({{{"code", code}, {"message", printable(message)}}})}})};
}

Answer no_name() {
  return refused(404, "NAME_UNKNOWN", "nothing is published at this URL");
}

Answer no_manifest(const std::string& reference) {
  return refused(404, "MANIFEST_UNKNOWN", "no version, tag or digest " + reference + " is here");
}

Answer no_blob(const std::string& message) {
  return refused(404, "BLOB_UNKNOWN", message);
}

std::optional<Digest> digest_of(std::string_view text) {
  constexpr std::string_view kAlgorithm = "sha256:";
  if (!text.starts_with(kAlgorithm)) return std::nullopt;
  return Digest::from_hex(text.substr(kAlgorithm.size()));
}

/// Whether this is a digest in the specification's words, by whichever algorithm.
bool is_digest(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (text.starts_with("sha256:")) return digest_of(text).has_value();
  return colon != std::string_view::npos && colon > 0 && colon + 1 < text.size() &&
         is_word(text.substr(0, colon), "+._-") && is_word(text.substr(colon + 1), "=_-");
}

Answer document(const Layout& layout, const Descriptor& descriptor) {
  return {200, descriptor.media_type, layout.read_blob(descriptor, "document"), nullptr,
          descriptor.digest.str()};
}

/// By its digest: what it is, it says itself.
Answer manifest_of(const Layout& layout, const std::string& reference) try {
  const std::optional<Digest> digest = digest_of(reference);
  if (!digest) return no_manifest(reference);
  const FileDescriptor file = layout.open_blob(*digest);
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0) return no_manifest(reference);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > kMaxDocumentBytes) return no_manifest(reference);  // a layer
  Answer answer = document(layout, {"", *digest, size});
  const Json json = parse_others_json(answer.body, "document");
  answer.type = JsonView(json, "document").string_or("mediaType", "");
  const bool is_one = answer.type == kMediaTypeIndex || answer.type == kMediaTypeManifest;
  return is_one ? answer : no_manifest(reference);
} catch (const Error& error) {
  if (error.code() != ErrorCode::kIntegrity) throw;
  return refused(404, "MANIFEST_UNKNOWN", error.what());  // also a blob, which is not a manifest
}

Answer manifest(const Layout& layout, const std::string& reference) {
  if (!is_tag(reference)) return manifest_of(layout, reference);
  const std::vector<Tag> tags = layout.read();
  const Tag* const tag = find_tag(tags, reference);
  return tag == nullptr ? no_manifest(reference) : document(layout, tag->descriptor);
}

/// An empty list where nothing hangs on it: 404 would say that the registry has no such request.
Answer referrers(const Layout& layout, const std::string& reference) {
  if (!is_digest(reference)) {
    return refused(
        400, "DIGEST_INVALID",
        "'" + reference + "' is not a digest, expected sha256: and 64 lower-case hex digits");
  }
  const std::optional<Digest> subject = digest_of(reference);
  if (subject && layout.exists()) {
    const std::vector<Tag> tags = layout.read();
    if (const Tag* list = find_tag(tags, referrers_tag(*subject))) {
      return document(layout, list->descriptor);
    }
  }
  return {200, std::string(kMediaTypeIndex), serialize_referrers({})};
}

/// `names`, all or a page of them, as the member `member`, next to those of `json`.
Answer list(const PullRequest& request, Json json, const char* member,
            std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  if (request.last) {
    names.erase(names.begin(), std::ranges::upper_bound(names, *request.last));
  }
  Answer answer{200, kJsonType};
  if (request.n) {
    const std::optional<std::uint64_t> most = parse_decimal(*request.n, UINT32_MAX);
    if (!most) return refused(400, "UNSUPPORTED", "n is '" + *request.n + "', expected a number");
    if (names.size() > *most) {
      names.resize(*most);
      if (!names.empty()) {
        answer.link = "<" + request.path + "?n=" + *request.n +
                      "&last=" + percent_encoded(names.back()) + ">; rel=\"next\"";
      }
    }
  }
  json[member] = names;
  answer.body = dump_json(json);
  return answer;
}

Answer tag_list(const PullRequest& request, const Layout& layout, const std::string& name) {
  std::vector<std::string> names;
  for (const Tag& tag : layout.read()) {
    if (!tag.name.empty()) names.push_back(tag.name);
  }
  return list(request, {{"name", name}}, "tags", std::move(names));
}

}  // namespace

bool HashedFile::same(const struct stat& left, const struct stat& right) {
  const auto key = [](const struct stat& of) {
    return std::array<std::int64_t, 7>{static_cast<std::int64_t>(of.st_dev),
                                       static_cast<std::int64_t>(of.st_ino),
                                       of.st_size,
                                       of.st_mtim.tv_sec,
                                       of.st_mtim.tv_nsec,
                                       of.st_ctim.tv_sec,
                                       of.st_ctim.tv_nsec};
  };
  return key(left) == key(right);
}

std::shared_ptr<const HashedFile> HashedFile::open(FileDescriptor file, const Digest& digest) {
  struct stat before {};
  struct stat after {};
  Sha256 hash;
  const bool read =
      ::fstat(file.get(), &before) == 0 &&
      try_read_pieces(file.get(), [&](std::string_view piece) { hash.update(piece); }) == 0 &&
      ::fstat(file.get(), &after) == 0;
  if (!read || !same(before, after) || hash.finish() != digest) return nullptr;
  return std::shared_ptr<const HashedFile>(new HashedFile(std::move(file), after));
}

std::string HashedFile::read(std::uint64_t at, std::size_t most) const {
  std::string piece(std::min<std::uint64_t>(most, size() - std::min(size(), at)), '\0');
  ssize_t count = 0;
  do {
    count = ::pread(file_.get(), piece.data(), piece.size(), static_cast<off_t>(at));
  } while (count < 0 && errno == EINTR);
  struct stat now {};
  const bool good = count > 0 && ::fstat(file_.get(), &now) == 0 && same(status_, now);
  piece.resize(good ? static_cast<std::size_t>(count) : 0);
  return piece;
}

/// Hashed once, and again only where the file was written to.
Answer PullApi::blob(const Layout& layout, const std::string& reference) try {
  const std::optional<Digest> digest = digest_of(reference);
  if (!digest) return no_blob("'" + reference + "' is not a digest of SHA-256");
  FileDescriptor file = layout.open_blob(*digest);
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0) {
    return no_blob("no blob " + reference + " is here");
  }
  bool is_known = false;
  {
    const std::scoped_lock lock(mutex_);
    const auto known = hashed_.find(*digest);
    is_known = known != hashed_.end() && HashedFile::same(known->second, status);
  }
  std::shared_ptr<const HashedFile> blob;
  if (is_known) {
    blob.reset(new HashedFile(std::move(file), status));
  } else {
    blob = HashedFile::open(std::move(file), *digest);
    if (!blob) return no_blob("the file of " + reference + " has other bytes: it is damaged");
    constexpr std::size_t kMostKept = 100'000;
    const std::scoped_lock lock(mutex_);
    if (hashed_.size() >= kMostKept) hashed_.clear();
    hashed_[*digest] = blob->status_;
  }
  Answer answer{200, "application/octet-stream"};
  answer.file = std::move(blob);
  answer.digest = reference;
  return answer;
} catch (const Error& error) {
  if (error.code() != ErrorCode::kIntegrity) throw;
  return no_blob(error.what());
}

Answer PullApi::answer(const PullRequest& request) {
  if (request.method != "GET" && request.method != "HEAD") {
    return refused(405, "UNSUPPORTED", "this registry is read only: expected GET or HEAD");
  }
  const std::string& path = request.path;
  if (path == "/v2/" || path == "/v2") return {200, kJsonType, "{}"};
  if (path == "/v2/_catalog") {
    return list(request, Json::object(), "repositories", packages_of(registry_));
  }
  const std::vector<std::string_view> words = split(path, '/');
  if (words.size() != 4 || words[0] != "v2" || path.ends_with('/')) return no_name();
  const std::string name(words[1]);
  const std::string reference(words[3]);
  const bool is_trust = name == trust_layout(registry_).folder().filename();
  if (!is_trust && !is_package_name(name)) return no_name();
  const Layout layout(registry_ / name);
  if (words[2] == "referrers") return referrers(layout, reference);
  if (!layout.exists()) return no_name();
  if (words[2] == "manifests") return manifest(layout, reference);
  if (words[2] == "blobs") return blob(layout, reference);
  return words[2] == "tags" && reference == "list" ? tag_list(request, layout, name) : no_name();
}

}  // namespace kiln::registry
