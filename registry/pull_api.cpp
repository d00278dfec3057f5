// SPDX-License-Identifier: Apache-2.0
#include "pull_api.hpp"

#include <optional>
#include <vector>

#include "base/join.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "layout.hpp"
#include "oci/referrers.hpp"
#include "oci/tag.hpp"
#include "trust_files.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJsonType = "application/json";

Answer not_found() {
  return {404,
          kJsonType,
          dump_json({{"errors", Json::array({{{"code", "NOT_FOUND"},
                                              {"message", "nothing is published at this URL"}}})}}),
          {}};
}

std::optional<Digest> digest_of(std::string_view text) {
  try {
    return Digest::parse(std::string(text));
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

Answer document(const Layout& layout, const Descriptor& descriptor) {
  return {200, descriptor.media_type,  layout.read_blob(descriptor, "document"), {},
          0,   descriptor.digest.str()};
}

/// By its tag, or by its digest; then it says itself what it is.
Answer manifest(const Layout& layout, const std::string& reference) {
  if (const std::vector<Tag> tags = layout.read(); const Tag* tag = find_tag(tags, reference)) {
    if (!reference.empty()) return document(layout, tag->descriptor);
  }
  const std::optional<Digest> digest = digest_of(reference);
  if (!digest) return not_found();
  const std::uint64_t size = size_of(layout.blob_path(*digest));
  if (size == 0 || size > kMaxDocumentBytes) return not_found();
  Answer answer = document(layout, {"", *digest, size});
  try {
    const Json json = parse_json(answer.body, "document");
    answer.type = JsonView(json, "document").string_or("mediaType", "");
  } catch (const Error&) {
    return not_found();  // a blob, of which this is no name
  }
  const bool is_one = answer.type == kMediaTypeIndex || answer.type == kMediaTypeManifest;
  return is_one ? answer : not_found();
}

Answer blob(const Layout& layout, const std::string& reference) {
  const std::optional<Digest> digest = digest_of(reference);
  if (!digest) return not_found();
  const fs::path path = layout.blob_path(*digest);
  const std::uint64_t size = size_of(path);
  if (size == 0) return not_found();
  return {200, "application/octet-stream", "", path, size, digest->str()};
}

Answer referrers(const Layout& layout, const std::string& reference) {
  const std::optional<Digest> subject = digest_of(reference);
  if (!subject) return not_found();
  const std::vector<Tag> tags = layout.read();
  if (const Tag* list = find_tag(tags, referrers_tag(*subject))) {
    return document(layout, list->descriptor);
  }
  return {200, std::string(kMediaTypeIndex), serialize_referrers({})};
}

Answer tag_list(const Layout& layout, const std::string& name) {
  Json names = Json::array();
  for (const Tag& tag : layout.read()) {
    if (!tag.name.empty()) names.push_back(tag.name);
  }
  return {200, kJsonType, dump_json({{"name", name}, {"tags", names}})};
}

}  // namespace

Answer answer_pull(const fs::path& registry, std::string_view path) {
  if (path == "/v2/" || path == "/v2") return {200, kJsonType, "{}"};
  if (path == "/v2/_catalog") {
    return {200, kJsonType, dump_json({{"repositories", packages_of(registry)}})};
  }
  const std::vector<std::string_view> words = split(path, '/');
  if (words.size() != 4 || words[0] != "v2" || path.ends_with('/')) return not_found();
  const std::string name(words[1]);
  const std::string reference(words[3]);
  const bool is_trust = name == trust_layout(registry).folder().filename();
  const Layout layout(registry / name);
  if ((!is_trust && !is_package_name(name)) || !layout.exists()) return not_found();
  if (words[2] == "manifests") return manifest(layout, reference);
  if (words[2] == "blobs") return blob(layout, reference);
  if (words[2] == "referrers") return referrers(layout, reference);
  return words[2] == "tags" && reference == "list" ? tag_list(layout, name) : not_found();
}

}  // namespace kiln::registry
