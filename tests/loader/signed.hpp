// SPDX-License-Identifier: Apache-2.0
//
// Signed: trust metadata for a registry folder of tests, as its artifact kiln.tuf, each document of
// which can be made wrong. Keys are made anew in each object.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "documents/descriptor.hpp"
#include "documents/json_fwd.hpp"
#include "trust/key.hpp"

namespace kiln::test {

inline constexpr std::int64_t kDay = 24 * 60 * 60;

/// A private key, by its type in trust metadata: "ed25519", "ecdsa" or "rsa".
class Signer {
 public:
  explicit Signer(const std::string& type = "ed25519");
  const trust::Key& key() const { return key_; }
  std::string id() const { return trust::key_id(key_); }
  std::string sign(std::string_view bytes) const;  ///< hex

 private:
  struct Private;
  std::shared_ptr<const Private> private_;
  trust::Key key_;
};

/// The metadata document with this body, signed by each.
std::string sign(const Json& body, const std::vector<Signer>& signers);

/// What a role says of its keys.
Json role_of(const std::vector<Signer>& signers, int threshold = 1);

class Signed {
 public:
  explicit Signed(std::filesystem::path registry);

  std::vector<Signer> root_keys{1};
  Signer targets_key;
  Signer online_key;
  std::int64_t expires;  ///< of what is signed from now on
  int targets_version = 0;
  int timestamp_version = 0;

  void add(const std::string& package, int version, const Descriptor& index);
  void yank(const std::string& package, int version, const std::string& reason);

  /// Signs the next root with the keys that there are now, and with those of the one before.
  void rotate();

  /// Signs targets, snapshot and timestamp, and writes all of it into the registry. `change` may
  /// edit a document's body before it is signed.
  using Change = std::function<void(const std::string& role, Json& body)>;
  void publish(const Change& change = {});

  const std::string& first_root() const { return roots_.front(); }

 private:
  Json body(const std::string& role, int version) const;

  std::filesystem::path registry_;
  std::vector<std::string> roots_;
  std::vector<Signer> keys_before_;
  std::map<std::string, std::shared_ptr<Json>> targets_;
};

/// Makes `root` trusted for the registry in the settings folder that KILN_CONFIG names.
void trust_root(const std::string& registry, const std::string& root);

}  // namespace kiln::test
