// SPDX-License-Identifier: Apache-2.0
//
// ReadAhead: a reader on a thread of its own, some pieces ahead of the one who takes them.
// For who decodes a layer. Used by one thread at a time.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <string_view>
#include <thread>

#include "base/piece_ring.hpp"

namespace kiln {

class ReadAhead {
 public:
  using Read = std::function<std::size_t(std::span<char>)>;  ///< how much it read; 0 at the end

  /// Throws std::system_error where there is no thread to be had.
  explicit ReadAhead(Read read);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Valid until the next call; empty at the end. What the reader throws comes when all that it
  /// read before is taken.
  std::string_view next();

 private:
  void read_pieces();

  Read read_;
  PieceRing ring_;
  std::exception_ptr failure_;
  std::thread thread_;  ///< last: it uses what is above
};

}  // namespace kiln
