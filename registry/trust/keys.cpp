// SPDX-License-Identifier: Apache-2.0
#include "registry/trust/keys.hpp"

#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/store.h>
#include <openssl/ui.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/draft.hpp"
#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "kiln/error.hpp"

namespace kiln::registry {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

[[noreturn]] void fail_key(const std::string& operation, const std::string& found) {
  ERR_clear_error();
  throw Error(ErrorCode::kTrust, operation + ": " + found);
}

std::string hex_of_bytes(const unsigned char* bytes, std::size_t size) {
  return hex_of({reinterpret_cast<const char*>(bytes), size});
}

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(size)};
}

std::string write_pem(EVP_PKEY* pkey) {
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free);
  if (!bio || PEM_write_bio_PUBKEY(bio.get(), pkey) != 1) {
    fail_key("write a public key", "OpenSSL refused it");
  }
  return text_of(bio.get());
}

/// One spelling, since a key's id is a hash of it: of an RSA key in a token, pkcs11-provider 1.0
/// writes an "RSA PUBLIC KEY", and OpenSSL itself a "PUBLIC KEY".
std::string pem_of_public(EVP_PKEY* pkey) {
  const std::shared_ptr<EVP_PKEY> read = trust::read_public_pem(write_pem(pkey));
  if (!read) fail_key("write a public key", "OpenSSL cannot read what it wrote");
  return write_pem(read.get());
}

trust::Key key_of(EVP_PKEY* pkey) {
  if (EVP_PKEY_is_a(pkey, "ED25519") == 1) {
    unsigned char raw[32];
    std::size_t size = sizeof(raw);
    if (EVP_PKEY_get_raw_public_key(pkey, raw, &size) == 1) {
      return {"ed25519", "ed25519", hex_of_bytes(raw, size)};
    }
  }
  char group[32] = {};
  if (EVP_PKEY_is_a(pkey, "EC") == 1 &&
      EVP_PKEY_get_group_name(pkey, group, sizeof(group), nullptr) == 1 &&
      std::string_view(group) == "prime256v1") {
    return {"ecdsa", "ecdsa-sha2-nistp256", pem_of_public(pkey)};
  }
  if (EVP_PKEY_is_a(pkey, "RSA") == 1 && EVP_PKEY_get_bits(pkey) >= 2048) {
    return {"rsa", "rsassa-pss-sha256", pem_of_public(pkey)};
  }
  fail_key("open key",
           "found another type, expected Ed25519, ECDSA P-256 or RSA of 2048 bits or more");
}

/// Never asks on its own: a caller with a prompt gives what was typed.
int give_passphrase(char* to, int room, int, void* passphrase) {
  const auto& text = *static_cast<const std::string*>(passphrase);
  if (text.empty() || text.size() > static_cast<std::size_t>(room)) return -1;
  std::copy(text.begin(), text.end(), to);
  return static_cast<int>(text.size());
}

using Store = std::unique_ptr<OSSL_STORE_CTX, decltype(&OSSL_STORE_close)>;
using Asking = std::unique_ptr<UI_METHOD, decltype(&UI_destroy_method)>;

/// The first private key in it; null without one.
std::shared_ptr<EVP_PKEY> load_key(OSSL_STORE_CTX* store) {
  while (OSSL_STORE_eof(store) == 0) {
    const std::unique_ptr<OSSL_STORE_INFO, decltype(&OSSL_STORE_INFO_free)> info(
        OSSL_STORE_load(store), OSSL_STORE_INFO_free);
    if (!info) {
      if (OSSL_STORE_error(store) != 0) break;
      continue;
    }
    if (OSSL_STORE_INFO_get_type(info.get()) != OSSL_STORE_INFO_PKEY) continue;
    return {OSSL_STORE_INFO_get1_PKEY(info.get()), EVP_PKEY_free};
  }
  return nullptr;
}

/// Whether the passphrase opens the key again.
bool opens(const std::string& pem, const std::string& passphrase) {
  std::string given = passphrase;
  const Asking asking(UI_UTIL_wrap_read_pem_callback(give_passphrase, 0), UI_destroy_method);
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  const Store store(OSSL_STORE_attach(bio.get(), "file", nullptr, nullptr, asking.get(), &given,
                                      nullptr, nullptr, nullptr),
                    OSSL_STORE_close);
  const bool opened = store && load_key(store.get()) != nullptr;
  ERR_clear_error();
  return opened;
}

/// The file that a key's name names, where it names one.
std::string path_of(const std::string& name) {
  constexpr std::string_view kFile = "file:";
  return name.starts_with(kFile) ? name.substr(kFile.size()) : name;
}

/// ssh's rule: a private key that others may read is no longer private. What is not a file, such as
/// a token's URI, has its own ways.
void check_private(const std::string& name) {
  struct stat status {};
  const std::string path = path_of(name);
  const NamedFile opened = open_named_file(path, Pipes::kRead);
  if (opened.error == 0 && !opened.problem.empty()) {  // OpenSSL would wait for it
    fail_key("open key " + quote(name), opened.problem + ". Name another path");
  }
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if ((status.st_mode & 0077) == 0) return;
  fail_key("open key " + quote(name),
           "others than its owner may read or change it; nothing was signed. "
           "Run 'chmod 600 " +
               shell_word(path) +
               "'; if others may have read it, make "
               "a new key");
}

}  // namespace

PrivateKey::PrivateKey(std::shared_ptr<EVP_PKEY> pkey)
    : pkey_(std::move(pkey)), key_(key_of(pkey_.get())) {}

PrivateKey PrivateKey::make(KeyType type) {
  EVP_PKEY* made = nullptr;
  switch (type) {
    case KeyType::kEd25519:
      made = EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
      break;
    case KeyType::kEcdsa:
      made = EVP_EC_gen("P-256");
      break;
    case KeyType::kRsa:
      made = EVP_RSA_gen(3072);
      break;
  }
  if (made == nullptr) fail_key("make a key", "OpenSSL made none");
  return PrivateKey(std::shared_ptr<EVP_PKEY>(made, EVP_PKEY_free));
}

PrivateKey PrivateKey::open(const std::string& name, const std::string& passphrase) {
  check_private(name);
  const Asking asking(UI_UTIL_wrap_read_pem_callback(give_passphrase, 0), UI_destroy_method);
  std::string given = passphrase;
  const Store store(OSSL_STORE_open(name.c_str(), asking.get(), &given, nullptr, nullptr),
                    OSSL_STORE_close);
  const std::string operation = "open key " + quote(name);
  if (!store) {
    const std::string path = path_of(name);
    const bool is_uri = path == name && name.find(':') != std::string::npos;
    const int error = is_uri ? 0 : open_named_file(path, Pipes::kRead).error;
    if (error != 0) fail_file("open key", path, error);
    fail_key(operation, "OpenSSL cannot open it. Check the path");
  }
  if (std::shared_ptr<EVP_PKEY> key = load_key(store.get())) return PrivateKey(std::move(key));
  fail_key(operation, "found no private key that this passphrase opens. Set KILN_KEY_PASSPHRASE");
}

std::string PrivateKey::sign(std::string_view bytes) const {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  EVP_PKEY_CTX* options = nullptr;  // the context's
  const bool rsa = key_.type == "rsa";
  const EVP_MD* hash = key_.type == "ed25519" ? nullptr : EVP_sha256();
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  std::size_t size = 0;
  if (!context || EVP_DigestSignInit(context.get(), &options, hash, nullptr, pkey_.get()) != 1 ||
      (rsa && (EVP_PKEY_CTX_set_rsa_padding(options, RSA_PKCS1_PSS_PADDING) != 1 ||
               EVP_PKEY_CTX_set_rsa_pss_saltlen(options, RSA_PSS_SALTLEN_DIGEST) != 1)) ||
      EVP_DigestSign(context.get(), nullptr, &size, data, bytes.size()) != 1) {
    fail_key("sign", "OpenSSL refused the key");
  }
  std::vector<unsigned char> signature(size);
  if (EVP_DigestSign(context.get(), signature.data(), &size, data, bytes.size()) != 1) {
    fail_key("sign", "OpenSSL refused the key");
  }
  return hex_of_bytes(signature.data(), size);
}

std::string PrivateKey::private_pem(const std::string& passphrase) const {
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free);
  const EVP_CIPHER* cipher = passphrase.empty() ? nullptr : EVP_aes_256_cbc();
  if (!bio ||
      PEM_write_bio_PKCS8PrivateKey(bio.get(), pkey_.get(), cipher, passphrase.data(),
                                    static_cast<int>(passphrase.size()), nullptr, nullptr) != 1) {
    fail_key("write a private key", "OpenSSL refused it");
  }
  return text_of(bio.get());
}

std::string PrivateKey::public_pem() const {
  return pem_of_public(pkey_.get());
}

/// Nothing if the file holds no key, or one of another passphrase.
static std::optional<PrivateKey> try_open(const std::filesystem::path& file,
                                          const std::string& passphrase) {
  try {
    return PrivateKey::open(file.string(), passphrase);
  } catch (const Error&) {
    return std::nullopt;
  }
}

PrivateKey write_key(PrivateKey key, const std::filesystem::path& file,
                     const std::string& passphrase) {
  const std::filesystem::path itself = absolute_path(file);
  std::filesystem::path half = itself;
  half += ".pub";
  // A run that was cut has made the first file, and may have given its key to nobody.
  if (stands(itself, &fail_file) && !stands(half, &fail_file)) {
    std::optional<PrivateKey> cut = try_open(itself, passphrase);
    if (cut && cut->key().type == key.key().type) {
      publish_bytes(half.parent_path(), half, cut->public_pem(), 0644);
      return *std::move(cut);
    }
  }
  for (const auto& path : {itself, half}) {
    if (!std::filesystem::exists(std::filesystem::symlink_status(path))) continue;
    throw Error(ErrorCode::kConflict, "make key " + path.string() +
                                          ": the file is there already, and a key that is lost "
                                          "cannot be made again. Name another file");
  }
  const std::string pem = key.private_pem(passphrase);
  if (!opens(pem, passphrase)) {
    throw Error(ErrorCode::kUsage, "make key " + itself.string() +
                                       ": OpenSSL does not open again what it wrote with this "
                                       "passphrase, of " +
                                       std::to_string(passphrase.size()) +
                                       " bytes; nothing was written. Set KILN_KEY_PASSPHRASE to "
                                       "a shorter one");
  }
  sweep_drafts(itself.parent_path(), "." + itself.filename().string());
  publish_bytes(itself.parent_path(), itself, pem, 0600);
  publish_bytes(half.parent_path(), half, key.public_pem(), 0644);
  return key;
}

Json to_json(const trust::Key& key) {
  return {{"keytype", key.type}, {"scheme", key.scheme}, {"keyval", {{"public", key.value}}}};
}

Json add_keys(Json& keys, const std::vector<trust::Key>& added) {
  Json ids = Json::array();
  for (const trust::Key& key : added) {
    const std::string id = trust::key_id(key);
    keys[id] = to_json(key);
    if (std::ranges::find(ids, Json(id)) == ids.end()) ids.push_back(id);
  }
  return ids;
}

void drop_unused_keys(Json& keys, const Json& roles) {
  std::set<std::string> used;
  for (const Json& role : roles) {
    for (const Json& id : role["keyids"]) used.insert(id.get<std::string>());
  }
  Json kept = Json::object();
  for (const auto& [id, key] : keys.items()) {
    if (used.contains(id)) kept[id] = key;
  }
  keys = std::move(kept);
}

trust::Key read_public_key(const std::filesystem::path& file) {
  constexpr std::uint64_t kMaxKeyBytes = 64 << 10;
  const std::string text = read_document(file, kMaxKeyBytes);
  if (const auto pkey = trust::read_public_pem(text)) return key_of(pkey.get());
  fail_key("open key " + quote(file.string()),
           "found no public key. Give the .pub file that 'kiln registry key' wrote");
}

}  // namespace kiln::registry
