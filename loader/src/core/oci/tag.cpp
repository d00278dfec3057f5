// SPDX-License-Identifier: Apache-2.0
#include "oci/tag.hpp"

#include <algorithm>

#include "base/number.hpp"
#include "documents/names.hpp"

namespace kiln {
namespace {

constexpr std::string_view kReferrersPrefix = "sha256-";

}  // namespace

bool is_tag(std::string_view text) {
  return !text.empty() && text.size() <= 128 && is_word(text.substr(0, 1), "_") &&
         is_word(text, "_.-");
}

std::string variant_tag(int version, std::string_view id) {
  return std::to_string(version) + "-" + std::string(id);
}

std::string referrers_tag(const Digest& subject) {
  return std::string(kReferrersPrefix) + subject.hex();
}

std::optional<Digest> subject_of_tag(std::string_view tag) {
  if (!tag.starts_with(kReferrersPrefix)) return std::nullopt;
  return Digest::from_hex(tag.substr(kReferrersPrefix.size()));
}

int version_of_tag(std::string_view tag) {
  return parse_version_number(tag);
}

std::vector<int> versions_among(const std::vector<std::string>& tags) {
  std::vector<int> versions;
  for (const std::string& tag : tags) {
    if (const int version = version_of_tag(tag); version > 0) versions.push_back(version);
  }
  std::sort(versions.begin(), versions.end());
  versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
  return versions;
}

}  // namespace kiln
