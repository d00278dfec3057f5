// SPDX-License-Identifier: Apache-2.0
#include "trust/key.hpp"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>

#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/digest.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "trust/canonical.hpp"

namespace kiln::trust {
namespace {

constexpr std::size_t kEd25519Bytes = 32;
/// Before those bytes in the key's SubjectPublicKeyInfo, by RFC 8410. Read and written here, so
/// that a key is what it is where OpenSSL has no Ed25519, too.
constexpr std::string_view kEd25519Info("\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00", 12);
constexpr int kLeastRsaBits = 2048;
constexpr int kMostRsaBits = 16384;  // the work of a verification grows with the square

struct Free {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(EVP_SIGNATURE* algorithm) const { EVP_SIGNATURE_free(algorithm); }
};
using PublicKey = std::shared_ptr<EVP_PKEY>;

/// Clears what OpenSSL says of a refused key or signature: its next caller must not find it.
struct QuietErrors {
  QuietErrors() { ERR_set_mark(); }
  ~QuietErrors() { ERR_pop_to_mark(); }
  QuietErrors(const QuietErrors&) = delete;
  QuietErrors& operator=(const QuietErrors&) = delete;
};

/// False, but where OpenSSL had no memory: that says nothing of a signature.
bool refused() {
  if (ERR_GET_REASON(ERR_peek_last_error()) == ERR_R_MALLOC_FAILURE) throw std::bad_alloc();
  return false;
}

const unsigned char* unsigned_of(std::string_view bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

int give_no_passphrase(char*, int, int, void*) {
  return -1;
}

bool is_p256(const EVP_PKEY* key) {
  char group[32] = {};
  std::size_t length = 0;
  return EVP_PKEY_is_a(key, "EC") == 1 &&
         EVP_PKEY_get_group_name(key, group, sizeof(group), &length) == 1 &&
         std::string_view(group, length) == "prime256v1";
}

/// The bytes of an Ed25519 key; nothing for another one.
std::optional<std::string> ed25519_bytes(const Key& key) {
  if (key.type != "ed25519" || key.scheme != "ed25519") return std::nullopt;
  std::optional<std::string> raw = bytes_of_hex(key.value);
  if (raw && raw->size() != kEd25519Bytes) raw.reset();
  return raw;
}

/// Null for a key that this Kiln, or this OpenSSL, cannot use.
PublicKey read_key(const Key& key) {
  if (const std::optional<std::string> raw = ed25519_bytes(key)) {
    return {EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, unsigned_of(*raw), raw->size()),
            EVP_PKEY_free};
  }
  const bool ec = (key.type == "ecdsa" || key.type == "ecdsa-sha2-nistp256") &&
                  key.scheme == "ecdsa-sha2-nistp256";
  const bool rsa = key.type == "rsa" && key.scheme == "rsassa-pss-sha256";
  if (!ec && !rsa) return nullptr;
  PublicKey found = read_public_pem(key.value);
  if (!found) return nullptr;
  const int bits = EVP_PKEY_get_bits(found.get());
  const bool fits =
      ec ? is_p256(found.get())
         : EVP_PKEY_is_a(found.get(), "RSA") == 1 && bits >= kLeastRsaBits && bits <= kMostRsaBits;
  return fits ? std::move(found) : nullptr;
}

/// The key's SubjectPublicKeyInfo; empty for what is not a key.
std::string info_of(const Key& key) {
  if (const std::optional<std::string> raw = ed25519_bytes(key)) {
    return std::string(kEd25519Info) + *raw;
  }
  const PublicKey known = read_key(key);
  unsigned char* encoded = nullptr;
  const int size = known ? i2d_PUBKEY(known.get(), &encoded) : 0;
  if (size <= 0) return {};
  std::string info(reinterpret_cast<const char*>(encoded), static_cast<std::size_t>(size));
  OPENSSL_free(encoded);
  return info;
}

std::optional<Key> ed25519_in_pem(std::string_view pem) {
  const std::unique_ptr<BIO, Free> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  unsigned char* bytes = nullptr;
  long size = 0;
  if (!bio || PEM_bytes_read_bio(&bytes, &size, nullptr, PEM_STRING_PUBLIC, bio.get(),
                                 give_no_passphrase, nullptr) != 1) {
    return std::nullopt;
  }
  const std::string info(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
  OPENSSL_free(bytes);
  if (!info.starts_with(kEd25519Info) || info.size() != kEd25519Info.size() + kEd25519Bytes) {
    return std::nullopt;
  }
  return Key{"ed25519", "ed25519", hex_of(std::string_view(info).substr(kEd25519Info.size()))};
}

}  // namespace

std::shared_ptr<EVP_PKEY> read_public_pem(std::string_view pem) {
  const QuietErrors quiet;
  const std::unique_ptr<BIO, Free> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return {bio ? PEM_read_bio_PUBKEY(bio.get(), nullptr, give_no_passphrase, nullptr) : nullptr,
          EVP_PKEY_free};
}

bool is_same_key(const Key& key, const Key& other) {
  if (key.value == other.value) return true;
  const QuietErrors quiet;
  const std::string info = info_of(key);
  if (info.empty() || info == info_of(other)) return !info.empty();
  const PublicKey one = read_key(key);
  const PublicKey two = read_key(other);
  return one && two && EVP_PKEY_eq(one.get(), two.get()) == 1;
}

std::optional<std::string> bytes_of_hex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    int byte = 0;
    for (const char c : text.substr(i, 2)) {
      const int digit = OPENSSL_hexchar2int(static_cast<unsigned char>(c));
      if (digit < 0) return std::nullopt;
      byte = byte * 16 + digit;
    }
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

std::string why_not_verifiable(const Key& key) {
  const QuietErrors quiet;
  const char* const algorithm = key.type == "ed25519" ? "ED25519"
                                : key.type == "rsa"   ? "RSA"
                                                      : "ECDSA";
  const std::unique_ptr<EVP_SIGNATURE, Free> found(
      EVP_SIGNATURE_fetch(nullptr, algorithm, nullptr));
  if (found) return {};
  return "this " + std::string(OpenSSL_version(OPENSSL_VERSION)) +
         " verifies no signature of type " + quote(key.type) +
         ", as where it is configured for FIPS. Take a configuration that does "
         "(OPENSSL_CONF), or ask the publisher for keys of another type";
}

bool verifies(const Key& key, std::string_view bytes, std::string_view signature) {
  const QuietErrors quiet;
  const std::optional<std::string> raw = bytes_of_hex(signature);
  const PublicKey known = raw ? read_key(key) : nullptr;
  if (!known) return refused();
  // RFC 8017 has a signature of RSA as long as the key; OpenSSL takes one without its leading
  // zeros.
  if (key.type == "rsa" && raw->size() != static_cast<std::size_t>(EVP_PKEY_get_size(known.get())))
    return refused();
  const std::unique_ptr<EVP_MD_CTX, Free> context(EVP_MD_CTX_new());
  if (!context) throw std::bad_alloc();
  EVP_PKEY_CTX* details = nullptr;
  const EVP_MD* const hash = key.type == "ed25519" ? nullptr : EVP_sha256();
  if (EVP_DigestVerifyInit(context.get(), &details, hash, nullptr, known.get()) != 1)
    return refused();
  if (key.type == "rsa" && (EVP_PKEY_CTX_set_rsa_padding(details, RSA_PKCS1_PSS_PADDING) != 1 ||
                            EVP_PKEY_CTX_set_rsa_pss_saltlen(details, RSA_PSS_SALTLEN_AUTO) != 1)) {
    return refused();
  }
  return EVP_DigestVerify(context.get(), unsigned_of(*raw), raw->size(), unsigned_of(bytes),
                          bytes.size()) == 1 ||
         refused();
}

std::optional<Key> key_in_pem(std::string_view pem) {
  const QuietErrors quiet;
  if (std::optional<Key> key = ed25519_in_pem(pem)) return key;
  const PublicKey found = read_public_pem(pem);
  if (!found) return std::nullopt;
  Key key;
  if (EVP_PKEY_is_a(found.get(), "EC") == 1) {
    key = {"ecdsa", "ecdsa-sha2-nistp256", std::string(pem)};
  } else {
    key = {"rsa", "rsassa-pss-sha256", std::string(pem)};
  }
  if (!read_key(key)) return std::nullopt;
  return key;
}

std::string fingerprint(const Key& key) {
  const QuietErrors quiet;
  const std::string info = info_of(key);
  return info.empty() ? info : Digest::of(info).hex();
}

std::string key_id(const Key& key) {
  return Digest::of(canonical_json({{"keytype", key.type},
                                    {"scheme", key.scheme},
                                    {"keyval", {{"public", key.value}}}}))
      .hex();
}

}  // namespace kiln::trust
