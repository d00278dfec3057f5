// SPDX-License-Identifier: Apache-2.0
//
// Key: a public key as trust metadata has it, and whether it made a signature. The
// cryptography is OpenSSL's. Before it: metadata, which reads keys. Pure; any thread.
#pragma once

#include <openssl/types.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace kiln::trust {

/// By `type` and `scheme`:
///
///   ed25519                        ed25519              value: 64 hex digits
///   ecdsa, ecdsa-sha2-nistp256     ecdsa-sha2-nistp256  value: PEM, a P-256 point
///   rsa                            rsassa-pss-sha256    value: PEM, 2048 bits or more
struct Key {
  std::string type;
  std::string scheme;
  std::string value;

  bool operator==(const Key&) const = default;
};

/// The public key in a PEM text; null if it has none. A key that asks for a passphrase is refused:
/// by default OpenSSL would ask for it at the terminal and wait.
std::shared_ptr<EVP_PKEY> read_public_pem(std::string_view pem);

/// Whether two are one key, however each is spelled: hex in another case, PEM in other lines.
bool is_same_key(const Key& key, const Key& other);

/// Whether the key made `signature`, in hex, over these bytes. False too for a key of another type
/// or with a value that is not such a key: its signatures count for nothing.
bool verifies(const Key& key, std::string_view bytes, std::string_view signature);

/// Why this OpenSSL can verify no signature of such a key, for instance where it is configured for
/// FIPS: "cannot verify" is not "not signed". Empty: it can.
std::string why_not_verifiable(const Key& key);

/// The key in a PEM text: Ed25519, P-256, or RSA of 2048 bits or more. Nothing for any other text.
/// An Ed25519 key is read where OpenSSL has no such algorithm, too: why_not_verifiable then says
/// so.
std::optional<Key> key_in_pem(std::string_view pem);

/// The id that sigstore's tools give a key: SHA-256 of its SubjectPublicKeyInfo, in hex. Empty for
/// text that is not a key.
std::string fingerprint(const Key& key);

/// Nothing for text that is not pairs of hex digits.
std::optional<std::string> bytes_of_hex(std::string_view text);

/// The id that TUF's tools give a key: SHA-256 of its canonical JSON, in hex.
std::string key_id(const Key& key);

}  // namespace kiln::trust
