// SPDX-License-Identifier: Apache-2.0
//
// Client metadata: what clients see of a registry: its metadata, and what they make of it; or
// nothing yet. Under every stage of sign. It never changes: a later state is another object.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "documents/json_fwd.hpp"
#include "kiln/error.hpp"
#include "registry/folder/trust_files.hpp"

namespace kiln::registry {

/// "sign DIR: …"
[[noreturn]] void fail_to_sign(ErrorCode code, const std::filesystem::path& registry,
                               const std::string& found);

class ClientMetadata {
 public:
  /// Of a folder. No files: nothing. Throws as follow() does; what has expired is not an error.
  ClientMetadata(TrustFiles files, std::string origin);
  /// What a client has made of these files is known already.
  ClientMetadata(TrustFiles files, std::string origin, trust::TrustedSet set);

  const TrustFiles& files() const { return files_; }
  const std::optional<trust::TrustedSet>& set() const { return set_; }
  const std::string& origin() const { return origin_; }

  /// Null where nothing is seen.
  const trust::Targets* targets() const { return set_ ? set_->targets() : nullptr; }

  /// 0: no such document.
  std::uint64_t version_of(const std::string& role) const;
  /// Null: no such document.
  const std::string* file_of(const std::string& role) const;
  /// What a document says, or null. Its bytes are those that the snapshot promises; who signed them
  /// is not looked at. Throws kTrust for others.
  Json body_of(const std::string& role) const;

 private:
  TrustFiles files_;
  std::string origin_;
  std::optional<trust::TrustedSet> set_;
};

}  // namespace kiln::registry
