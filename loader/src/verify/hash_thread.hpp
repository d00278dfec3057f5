// SPDX-License-Identifier: Apache-2.0
//
// HashThread: SHA-256 on a thread of its own, beside the network or the decoder that the bytes come
// from. Part of verify. Used by one thread at a time.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "verify/digest.hpp"

namespace kiln {

class HashThread {
 public:
  /// Throws std::system_error where there is no thread to be had.
  HashThread();
  HashThread(const HashThread&) = delete;
  HashThread& operator=(const HashThread&) = delete;

  void update(std::string_view bytes);  ///< copies them
  Digest finish();                      ///< once; the thread has ended then

 private:
  static constexpr std::size_t kPieces = 4;
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

  void hand_over();
  void hash_pieces(const std::stop_token& stop);

  // A ring: the caller fills piece filled_ % kPieces while the thread hashes those before it.
  std::array<std::string, kPieces> pieces_;
  std::size_t filled_ = 0;  ///< under mutex_, as is hashed_
  std::size_t hashed_ = 0;
  std::mutex mutex_;
  std::condition_variable_any filled_one_;
  std::condition_variable hashed_one_;
  Sha256 hash_;
  std::exception_ptr failure_;
  std::jthread thread_;  ///< last: it uses what is above
};

}  // namespace kiln
