// SPDX-License-Identifier: Apache-2.0
//
// PieceRing: bytes from one thread to another through a few pieces of memory, so that both work at
// once. Part of files; verify hashes through one, the cache decodes through one.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>

namespace kiln {

class PieceRing {
 public:
  /// For fewer bytes than this, a thread costs more than it saves.
  static constexpr std::size_t kWorthAThread = std::size_t{1} << 20;

  // One thread fills:
  std::span<char> room();        ///< waits for a free piece; empty once the ring is closed
  void fill(std::size_t count);  ///< so much of it is the next piece
  // another takes:
  std::string_view next();  ///< valid until the next call; empty after the last one
  // and either ends it: nothing more comes, or nothing more is wanted.
  void close();

 private:
  static constexpr std::size_t kPieces = 4;
  static constexpr std::size_t kPieceBytes = std::size_t{512} << 10;

  struct Piece {
    std::unique_ptr<char[]> memory = std::make_unique_for_overwrite<char[]>(kPieceBytes);
    std::size_t size = 0;
  };
  std::array<Piece, kPieces> pieces_;
  std::mutex mutex_;
  std::condition_variable filled_one_;
  std::condition_variable freed_one_;
  std::size_t filled_ = 0;  ///< pieces ever; under mutex_, as is what follows
  std::size_t freed_ = 0;
  bool taking_ = false;  ///< a piece that next() gave is still in use
  bool closed_ = false;
};

}  // namespace kiln
