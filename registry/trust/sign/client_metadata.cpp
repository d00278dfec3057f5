// SPDX-License-Identifier: Apache-2.0
#include "registry/trust/sign/client_metadata.hpp"

#include <utility>

#include "documents/json.hpp"

namespace kiln::registry {

void fail_to_sign(ErrorCode code, const std::filesystem::path& registry, const std::string& found) {
  throw Error(code, "sign " + registry.string() + ": " + found);
}

ClientMetadata::ClientMetadata(TrustFiles files, std::string origin)
    : files_(std::move(files)), origin_(std::move(origin)) {
  if (!files_.empty()) set_.emplace(follow(files_, origin_, trust::Expiry::kTold));
}

ClientMetadata::ClientMetadata(TrustFiles files, std::string origin, trust::TrustedSet set)
    : files_(std::move(files)), origin_(std::move(origin)), set_(std::move(set)) {}

std::uint64_t ClientMetadata::version_of(const std::string& role) const {
  if (!set_) return 0;
  if (role == "timestamp") return set_->timestamp()->version;
  if (role == "snapshot") return set_->snapshot()->version;
  const auto found = set_->snapshot()->files.find(role);
  return found == set_->snapshot()->files.end() ? 0 : found->second.version;
}

const std::string* ClientMetadata::file_of(const std::string& role) const {
  const auto found = files_.find(role_file(version_of(role), role));
  return found == files_.end() ? nullptr : &found->second;
}

Json ClientMetadata::body_of(const std::string& role) const {
  const std::string* const file = file_of(role);
  if (file == nullptr) return nullptr;
  set_->file_of(role).promise.check(*file, role_file(version_of(role), role) + " of " + origin_);
  return parse_json(*file, role)["signed"];
}

}  // namespace kiln::registry
