// SPDX-License-Identifier: Apache-2.0
//
// HashThread: SHA-256 on a thread of its own, parallel to the network or decoder that gives the
// bytes. Part of verify. Used by one thread at a time.
#pragma once

#include <string_view>
#include <thread>

#include "base/digest.hpp"
#include "base/piece_ring.hpp"

namespace kiln {

class HashThread {
 public:
  HashThread();
  HashThread(const HashThread&) = delete;
  HashThread& operator=(const HashThread&) = delete;
  ~HashThread() { end(); }

  void update(std::string_view bytes);  ///< copies them
  Digest finish();                      ///< once; the thread has ended then

 private:
  void end();

  Sha256 hash_;
  PieceRing ring_;
  PieceRing::Piece* piece_ = nullptr;  ///< the one that is being filled
  std::thread thread_;
};

}  // namespace kiln
