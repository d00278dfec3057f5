// SPDX-License-Identifier: Apache-2.0
//
// ReadAhead: a reader that works on the next piece on a thread of its own while this one is taken.
// For who decodes a layer. Used by one thread at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <future>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace kiln {

class ReadAhead {
 public:
  using Read = std::function<std::size_t(std::span<char>)>;  ///< how much it read; 0 at the end

  explicit ReadAhead(Read read) : read_(std::move(read)) {}
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Valid until the next call; empty at the end. What the reader throws comes when all that it
  /// read before is taken.
  std::string_view next() {
    if (!count_.valid()) start();
    const std::size_t count = count_.get();
    taken_.swap(filled_);
    if (count > 0) start();
    return {taken_.data(), count};
  }

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{512} << 10;

  // Without std::launch::async: where there is no thread to be had, get() reads.
  void start() {
    count_ = std::async([this] { return read_(filled_); });
  }

  Read read_;
  std::vector<char> filled_ = std::vector<char>(kPieceBytes);  ///< the reader's
  std::vector<char> taken_ = std::vector<char>(kPieceBytes);
  std::future<std::size_t> count_;  ///< last: its thread uses what is above
};

}  // namespace kiln
