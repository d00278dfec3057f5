// SPDX-License-Identifier: Apache-2.0
//
// Digest: SHA-256 in OCI's spelling, "sha256:" and 64 lower-case hex digits. Pure values.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kiln {

class Digest {
 public:
  Digest() = default;  ///< empty: no digest
  /// Throws Error(kIntegrity) unless the text is exactly "sha256:<64 lower-case hex>".
  static Digest parse(std::string_view text);
  static Digest of(std::string_view bytes);
  /// Nothing unless the text is exactly 64 lower-case hex digits.
  static std::optional<Digest> from_hex(std::string_view text);

  std::string str() const { return "sha256:" + hex_; }
  const std::string& hex() const { return hex_; }
  /// The first 12 hex digits, for messages.
  std::string brief() const { return hex_.substr(0, 12); }
  bool empty() const { return hex_.empty(); }
  auto operator<=>(const Digest&) const = default;

 private:
  friend class Sha256;
  std::string hex_;
};

/// Hashes a stream piece by piece.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void update(std::string_view bytes);
  Digest finish();  ///< once; the object is spent

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace kiln
