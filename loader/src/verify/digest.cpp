// SPDX-License-Identifier: Apache-2.0
#include "verify/digest.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "documents/quote.hpp"
#include "kiln/error.hpp"

namespace kiln {

namespace {

constexpr std::string_view kPrefix = "sha256:";
constexpr std::size_t kHexDigits = 64;

[[noreturn]] void fail_openssl(std::string_view call) {
  throw Error(ErrorCode::kInternal,
              "sha256: " + std::string(call) + " failed; check the OpenSSL installation");
}

}  // namespace

Digest Digest::parse(std::string_view text) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (!text.starts_with(kPrefix) || text.size() != kPrefix.size() + kHexDigits ||
      !std::all_of(text.begin() + kPrefix.size(), text.end(), is_hex)) {
    throw Error(ErrorCode::kIntegrity,
                "digest " + quote(text) + "; expected \"sha256:\" and 64 lower-case hex digits");
  }
  Digest digest;
  digest.hex_ = text.substr(kPrefix.size());
  return digest;
}

Digest Digest::of(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

struct Sha256::Context {
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> evp{EVP_MD_CTX_new()};
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  if (!context_->evp || EVP_DigestInit_ex(context_->evp.get(), EVP_sha256(), nullptr) != 1) {
    fail_openssl("EVP_DigestInit_ex");
  }
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::string_view bytes) {
  if (!context_) throw Error(ErrorCode::kInternal, "sha256: update after finish");
  if (EVP_DigestUpdate(context_->evp.get(), bytes.data(), bytes.size()) != 1) {
    fail_openssl("EVP_DigestUpdate");
  }
}

Digest Sha256::finish() {
  if (!context_) throw Error(ErrorCode::kInternal, "sha256: finish called twice");
  std::array<unsigned char, kHexDigits / 2> bytes{};
  if (EVP_DigestFinal_ex(context_->evp.get(), bytes.data(), nullptr) != 1) {
    fail_openssl("EVP_DigestFinal_ex");
  }
  context_.reset();
  constexpr std::string_view kHex = "0123456789abcdef";
  Digest digest;
  digest.hex_.reserve(kHexDigits);
  for (const unsigned char byte : bytes) {
    digest.hex_ += kHex[byte >> 4];
    digest.hex_ += kHex[byte & 0xf];
  }
  return digest;
}

}  // namespace kiln
