// SPDX-License-Identifier: Apache-2.0
//
// Keys: the private half of a key that signs trust metadata. Under root_draft and sign; its public
// half is trust/key.hpp. The cryptography is OpenSSL's. For one thread.
//
//   FILE       PKCS#8 in PEM, mode 0600, encrypted if there is a passphrase
//   FILE.pub   SubjectPublicKeyInfo in PEM
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "documents/json_fwd.hpp"
#include "trust/key.hpp"

typedef struct evp_pkey_st EVP_PKEY;

namespace kiln::registry {

/// "ed25519", "ecdsa" (P-256) or "rsa" (3072 bits).
enum class KeyType { kEd25519, kEcdsa, kRsa };

class PrivateKey {
 public:
  /// Makes a new key: Ed25519, P-256, or RSA of 3072 bits.
  static PrivateKey make(KeyType type);

  /// `name`: a file, or a URI that OpenSSL can open, like "pkcs11:…" where a provider is
  /// configured. Throws kTrust for what holds no private key of the three types, or a wrong
  /// passphrase. Empty: without a passphrase.
  static PrivateKey open(const std::string& name, const std::string& passphrase);

  const trust::Key& key() const { return key_; }

  /// A signature over these bytes, in hex.
  std::string sign(std::string_view bytes) const;

  std::string private_pem(const std::string& passphrase) const;
  std::string public_pem() const;

 private:
  explicit PrivateKey(std::shared_ptr<EVP_PKEY> pkey);

  std::shared_ptr<EVP_PKEY> pkey_;
  trust::Key key_;
};

/// Writes FILE and FILE.pub, and returns the key that they hold. kConflict where either is there: a
/// key that is lost cannot be made again. FILE alone is what a killed run leaves: if the passphrase
/// opens it and it has the same type, it gets its FILE.pub.
PrivateKey write_key(PrivateKey key, const std::filesystem::path& file,
                     const std::string& passphrase);

/// A key as metadata writes it.
Json to_json(const trust::Key& key);

/// Puts the added ones into `keys`. Returns their ids as metadata lists them, each once.
Json add_keys(Json& keys, const std::vector<trust::Key>& added);

/// Leaves in `keys` what one of `roles` names.
void drop_unused_keys(Json& keys, const Json& roles);

/// The key in FILE.pub. Throws kTrust for what holds no public key of the three types.
trust::Key read_public_key(const std::filesystem::path& file);

}  // namespace kiln::registry
