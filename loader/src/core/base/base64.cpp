// SPDX-License-Identifier: Apache-2.0
#include "base/base64.hpp"

#include <openssl/evp.h>

namespace kiln {

std::optional<std::string> decode_base64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  const int padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  if (size < padding) return std::nullopt;
  bytes.resize(static_cast<std::size_t>(size - padding));
  // It passes over spaces and counts padding as bytes, wherever it stands: only the one strict form
  // is what the bytes give again.
  if (encode_base64(bytes) != text) return std::nullopt;
  return bytes;
}

std::string encode_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // and a NUL, which OpenSSL writes
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

}  // namespace kiln
