// SPDX-License-Identifier: Apache-2.0
//
// A private key of each type signs what the client verifies, and comes back from its file.
#include <doctest/doctest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kiln/error.hpp"
#include "registry/trust/keys.hpp"

namespace {

namespace fs = std::filesystem;
using kiln::registry::KeyType;
using kiln::registry::PrivateKey;

struct File {
  explicit File(const std::string& bytes)
      : path(fs::temp_directory_path() / ("kiln-key-" + std::to_string(::getpid()) + ".pem")) {
    std::ofstream(path) << bytes;
    fs::permissions(path, fs::perms(0600));
  }
  ~File() { fs::remove(path); }
  fs::path path;
};

constexpr KeyType kTypes[] = {KeyType::kEd25519, KeyType::kEcdsa, KeyType::kRsa};

}  // namespace

TEST_CASE("each type signs, and the client verifies") {
  for (const KeyType type : kTypes) {
    const PrivateKey made = PrivateKey::make(type);
    CAPTURE(made.key().type);
    const std::string signature = made.sign("signed");
    CHECK(kiln::trust::verifies(made.key(), "signed", signature));
    CHECK_FALSE(kiln::trust::verifies(made.key(), "sighed", signature));
    CHECK_FALSE(kiln::trust::verifies(PrivateKey::make(type).key(), "signed", signature));
  }
}

TEST_CASE("a key comes back from its file, encrypted or not") {
  for (const KeyType type : kTypes) {
    const PrivateKey made = PrivateKey::make(type);
    CAPTURE(made.key().type);
    for (const std::string passphrase : {"", "correct horse"}) {
      const File file(made.private_pem(passphrase));
      const PrivateKey opened = PrivateKey::open(file.path.string(), passphrase);
      CHECK(opened.key() == made.key());
      CHECK(kiln::trust::verifies(made.key(), "signed", opened.sign("signed")));
    }
  }
}

TEST_CASE("a wrong passphrase, none, a public key and no file open nothing") {
  const PrivateKey made = PrivateKey::make(KeyType::kEd25519);
  const File encrypted(made.private_pem("right"));
  CHECK_THROWS_AS(PrivateKey::open(encrypted.path.string(), "wrong"), kiln::Error);
  CHECK_THROWS_AS(PrivateKey::open(encrypted.path.string(), ""), kiln::Error);
  const File half(made.public_pem());
  CHECK_THROWS_AS(PrivateKey::open(half.path.string(), ""), kiln::Error);
  CHECK_THROWS_AS(PrivateKey::open("/nowhere/key.pem", ""), kiln::Error);
}

TEST_CASE("a key of another type, or one that is too short, is not opened") {
  EVP_PKEY* const others[] = {EVP_PKEY_Q_keygen(nullptr, nullptr, "RSA", std::size_t{1024}),
                              EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-384"),
                              EVP_PKEY_Q_keygen(nullptr, nullptr, "ED448")};
  for (EVP_PKEY* const other : others) {
    REQUIRE(other != nullptr);
    BIO* const memory = BIO_new(BIO_s_mem());
    REQUIRE(PEM_write_bio_PrivateKey(memory, other, nullptr, nullptr, 0, nullptr, nullptr) == 1);
    char* text = nullptr;
    const long size = BIO_get_mem_data(memory, &text);
    const File file(std::string(text, static_cast<std::size_t>(size)));
    BIO_free(memory);
    EVP_PKEY_free(other);
    try {
      PrivateKey::open(file.path.string(), "");
      FAIL("it was opened");
    } catch (const kiln::Error& error) {
      CHECK(std::string(error.what())
                .find("found another type, expected Ed25519, ECDSA P-256 or "
                      "RSA of 2048 bits or more") != std::string::npos);
    }
  }
}

TEST_CASE("a key that others may read or change is not opened") {
  const PrivateKey made = PrivateKey::make(KeyType::kEd25519);
  const File file(made.private_pem(""));
  for (const unsigned mode : {0640U, 0604U, 0620U, 0602U}) {
    fs::permissions(file.path, fs::perms(mode));
    for (const std::string before : {"", "file:"}) {
      CHECK_THROWS_WITH_AS(PrivateKey::open(before + file.path.string(), ""),
                           doctest::Contains("Run 'chmod 600 "), kiln::Error);
    }
  }
  fs::permissions(file.path, fs::perms(0400));
  CHECK(PrivateKey::open(file.path.string(), "").key() == made.key());
}

TEST_CASE("a passphrase that OpenSSL does not take back makes no key") {
  const fs::path folder = fs::temp_directory_path() / ("kiln-keys-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  for (const std::size_t bytes : {1023U, 1024U, 1025U, 4000U}) {
    CAPTURE(bytes);
    const fs::path file = folder / std::to_string(bytes);
    const std::string passphrase(bytes, 'x');
    try {
      kiln::registry::write_key(PrivateKey::make(KeyType::kEd25519), file, passphrase);
      PrivateKey::open(file.string(), passphrase);
    } catch (const kiln::Error& error) {
      CHECK(error.code() == kiln::ErrorCode::kUsage);
      CHECK_FALSE(fs::exists(file));
    }
  }
  fs::remove_all(folder);
}

TEST_CASE("a key whose run was cut between its two files gets the second one") {
  const fs::path folder = fs::temp_directory_path() / ("kiln-keys-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const fs::path file = folder / "key";
  const fs::path half = folder / "key.pub";
  const auto make = [&](KeyType type, const std::string& passphrase) {
    return kiln::registry::write_key(PrivateKey::make(type), file, passphrase).key();
  };
  const kiln::trust::Key first = make(KeyType::kEd25519, "right");
  CHECK(kiln::registry::read_public_key(half) == first);
  CHECK_THROWS_AS(make(KeyType::kEd25519, "right"), kiln::Error);  // both are there
  fs::remove(half);
  CHECK_THROWS_AS(make(KeyType::kEd25519, "wrong"), kiln::Error);
  CHECK_THROWS_AS(make(KeyType::kRsa, "right"), kiln::Error);  // not what was asked for
  CHECK_FALSE(fs::exists(half));
  CHECK(make(KeyType::kEd25519, "right") == first);
  CHECK(kiln::registry::read_public_key(half) == first);
  fs::remove(file);
  CHECK_THROWS_AS(make(KeyType::kEd25519, "right"), kiln::Error);  // a half of some other key
  CHECK(kiln::registry::read_public_key(half) == first);
  fs::remove_all(folder);
}
