// SPDX-License-Identifier: Apache-2.0
//
// PieceRing: four pieces of memory that go round between a thread that fills them and one that
// takes what is in them, in order; each waits for the other. For HashThread and ReadAhead.
#pragma once

#include <array>
#include <cstddef>
#include <semaphore>
#include <string_view>
#include <vector>

namespace kiln {

class PieceRing {
 public:
  struct Piece {
    std::vector<char> room = std::vector<char>(std::size_t{512} << 10);
    std::size_t size = 0;
    std::string_view bytes() const { return {room.data(), size}; }
  };

  Piece& to_fill() {  ///< of the thread that fills: waits for a piece that is free
    free_.acquire();
    return pieces_[filled_ % kPieces];
  }
  void filled() {
    ++filled_;
    full_.release();
  }

  Piece& to_take() {  ///< of the thread that takes: waits for a piece that is filled
    full_.acquire();
    return pieces_[taken_ % kPieces];
  }
  void taken() {
    ++taken_;
    free_.release();
  }

 private:
  static constexpr std::size_t kPieces = 4;  // two stall each time that one of the threads pauses

  std::array<Piece, kPieces> pieces_;
  std::size_t filled_ = 0;
  std::size_t taken_ = 0;
  std::counting_semaphore<kPieces + 1> free_{kPieces};  // and one to wake the thread that is to end
  std::counting_semaphore<kPieces> full_{0};
};

}  // namespace kiln
