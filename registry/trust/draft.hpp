// SPDX-License-Identifier: Apache-2.0
//
// Draft: metadata that still lacks signatures, in one file that goes from one signer
// to the next, as a root draft does. With it are the documents that it follows, so that a signer
// can see what changes. Between sign, which makes one and takes it back, and review, which signs it
// elsewhere. No client ever reads one.
//
//   kiln.registry-draft/1
//   before 2.targets.json 913      roots, and what clients have of the documents below
//   <913 bytes>
//   next targets 1022              one document a role
//   <1022 bytes>
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "registry/folder/trust_files.hpp"
#include "registry/trust/keys.hpp"
#include "trust/metadata.hpp"

namespace kiln::registry {

/// A document and who signed it so far.
class Pending {
 public:
  /// Unsigned.
  explicit Pending(Json body);
  /// As a file has it. Throws kTrust, or kIntegrity, for another document.
  Pending(std::string_view document, const std::string& what);

  const Json& body() const { return body_; }
  std::uint64_t version() const;

  /// Adds the signatures of those keys that may; says whether there was one.
  bool sign(const std::vector<PrivateKey>& keys, const trust::Signers& signers);
  /// Takes over those of the same document. False: it is another one.
  bool join(const Pending& other);

  /// Ids of the signers that have signed.
  std::set<std::string> signed_by(const trust::Keys& keys, const trust::Signers& signers) const;
  bool is_complete(const trust::Keys& keys, const trust::Signers& signers) const {
    return signed_by(keys, signers).size() >= signers.threshold;
  }

  /// Whether each signature, good or not, is of one of these keys.
  bool is_only_of(const std::vector<PrivateKey>& keys) const;

  /// The file. Throws kUsage for more than a client reads.
  std::string text(const std::string& role) const;

 private:
  Json body_;
  std::string canonical_;
  std::map<std::string, std::string> signatures_;  ///< by id of the key
};

struct TrustDraft {
  TrustFiles before;
  std::map<std::string, Pending> next;  ///< by role
};

/// Where a registry folder has its draft.
std::filesystem::path draft_path(const std::filesystem::path& registry);

/// Whether a file begins as a draft does.
bool is_trust_draft(const std::filesystem::path& file);

/// Nothing where there is no such file. Throws kTrust for another file.
std::optional<TrustDraft> read_draft(const std::filesystem::path& file);
void write_draft(const std::filesystem::path& file, const TrustDraft& draft);

/// What a role still lacks.
struct Missing {
  std::string role;
  std::uint64_t version = 0;
  std::size_t have = 0;
  std::uint64_t need = 0;
  std::vector<std::string> may_sign;  ///< ids of keys that have not
};

/// What a targets document says that the one before it does not: "+ acme/2 sha256:… 812 bytes".
/// `before`: its body, or null.
std::vector<std::string> changes_of(const std::string& role, const Json& before, const Json& next);

}  // namespace kiln::registry
