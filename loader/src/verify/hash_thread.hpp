// SPDX-License-Identifier: Apache-2.0
//
// HashThread: SHA-256 on a thread of its own, beside the network or the decoder that the bytes come
// from. Part of verify. Used by one thread at a time.
#pragma once

#include <cstddef>
#include <exception>
#include <span>
#include <string_view>
#include <thread>

#include "base/digest.hpp"
#include "base/piece_ring.hpp"

namespace kiln {

class HashThread {
 public:
  /// Throws std::system_error where there is no thread to be had.
  HashThread();
  ~HashThread();
  HashThread(const HashThread&) = delete;
  HashThread& operator=(const HashThread&) = delete;

  void update(std::string_view bytes);  ///< copies them
  Digest finish();                      ///< once; the thread has ended then

 private:
  void hash_pieces();
  void end();

  PieceRing ring_;
  std::span<char> piece_ = ring_.room();
  std::size_t used_ = 0;  ///< of piece_
  Sha256 hash_;
  std::exception_ptr failure_;
  std::thread thread_;  ///< last: it uses what is above
};

}  // namespace kiln
