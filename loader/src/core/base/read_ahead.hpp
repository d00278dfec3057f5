// SPDX-License-Identifier: Apache-2.0
//
// ReadAhead: a reader that works on the next pieces on a thread of its own while this one is taken.
// Layers are decoded through one. Used by one thread at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/piece_ring.hpp"

namespace kiln {

class ReadAhead {
 public:
  using Read = std::function<std::size_t(std::span<char>)>;  ///< how much it read; 0 at the end

  explicit ReadAhead(Read read) : read_(std::move(read)) {
    try {
      thread_ = std::thread([this] { fill(); });
    } catch (const std::system_error&) {  // no thread to be had: next() reads
    }
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead() {
    stop_ = true;
    ring_.taken();
    if (thread_.joinable()) thread_.join();
  }

  /// Valid until the next call; empty at the end. What the reader throws comes when all that it
  /// read before is taken.
  std::string_view next() {
    if (!ended_) {
      if (std::exchange(holds_, true)) ring_.taken();
      if (!thread_.joinable()) fill_one();
      const std::string_view bytes = ring_.to_take().bytes();
      ended_ = bytes.empty();
      if (!ended_) return bytes;
    }
    if (failure_) std::rethrow_exception(failure_);
    return {};
  }

 private:
  /// Whether there may be more.
  bool fill_one() {
    PieceRing::Piece& piece = ring_.to_fill();
    piece.size = 0;
    if (stop_) return false;
    try {
      piece.size = read_(piece.room);
    } catch (...) {
      failure_ = std::current_exception();
    }
    ring_.filled();
    return piece.size > 0;
  }
  void fill() {
    while (fill_one()) {
    }
  }

  Read read_;
  PieceRing ring_;
  std::exception_ptr failure_;
  std::atomic<bool> stop_ = false;
  bool holds_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace kiln
