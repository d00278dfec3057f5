// SPDX-License-Identifier: Apache-2.0
//
// HashThread: SHA-256 on a thread of its own, beside the network or the decoder that the bytes come
// from. Part of verify. Used by one thread at a time.
#pragma once

#include <cstddef>
#include <future>
#include <string>
#include <string_view>

#include "base/digest.hpp"

namespace kiln {

class HashThread {
 public:
  HashThread() = default;
  HashThread(const HashThread&) = delete;
  HashThread& operator=(const HashThread&) = delete;

  void update(std::string_view bytes);  ///< copies them
  Digest finish();                      ///< once; the thread has ended then

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{512} << 10;

  Sha256 hash_;
  std::string gathered_;      ///< the next piece
  std::string piece_;         ///< the thread's
  std::future<void> hashed_;  ///< last: its thread uses what is above
};

}  // namespace kiln
