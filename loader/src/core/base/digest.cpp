// SPDX-License-Identifier: Apache-2.0
// OpenSSL would rather have EVP called (OPENSSL_SUPPRESS_DEPRECATED, in the build, keeps it
// silent). The first use of EVP in a process reads openssl.cnf and sets up every algorithm of a
// provider: 1.0 ms, half of a get_kernel from the cache. These calls are the same code without
// that, and what OPENSSL_CONF says has no part in what Kiln calls intact.
#include "base/digest.hpp"

#include <openssl/sha.h>

#include <algorithm>

#include "base/quote.hpp"
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
  const std::optional<Digest> digest =
      text.starts_with(kPrefix) ? from_hex(text.substr(kPrefix.size())) : std::nullopt;
  if (digest) return *digest;
  throw Error(ErrorCode::kIntegrity,
              "digest " + quote(text) + "; expected \"sha256:\" and 64 lower-case hex digits");
}

std::optional<Digest> Digest::from_hex(std::string_view text) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (text.size() != kHexDigits || !std::all_of(text.begin(), text.end(), is_hex)) {
    return std::nullopt;
  }
  Digest digest;
  digest.hex_ = text;
  return digest;
}

Digest Digest::of(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

struct Sha256::Context {
  SHA256_CTX sha;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  if (SHA256_Init(&context_->sha) != 1) fail_openssl("SHA256_Init");
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::string_view bytes) {
  if (!context_) throw Error(ErrorCode::kInternal, "sha256: update after finish");
  if (SHA256_Update(&context_->sha, bytes.data(), bytes.size()) != 1) fail_openssl("SHA256_Update");
}

Digest Sha256::finish() {
  if (!context_) throw Error(ErrorCode::kInternal, "sha256: finish called twice");
  std::string bytes(kHexDigits / 2, '\0');
  if (SHA256_Final(reinterpret_cast<unsigned char*>(bytes.data()), &context_->sha) != 1) {
    fail_openssl("SHA256_Final");
  }
  context_.reset();
  Digest digest;
  digest.hex_ = hex_of(bytes);
  return digest;
}

}  // namespace kiln
