// SPDX-License-Identifier: Apache-2.0
#include "base/piece_ring.hpp"

namespace kiln {

std::span<char> PieceRing::room() {
  std::unique_lock held(mutex_);
  freed_one_.wait(held, [&] { return closed_ || filled_ - freed_ < kPieces; });
  if (closed_) return {};
  return {pieces_[filled_ % kPieces].memory.get(), kPieceBytes};
}

void PieceRing::fill(std::size_t count) {
  const std::scoped_lock held(mutex_);
  pieces_[filled_ % kPieces].size = count;
  ++filled_;
  filled_one_.notify_one();
}

std::string_view PieceRing::next() {
  std::unique_lock held(mutex_);
  if (taking_) {
    ++freed_;
    freed_one_.notify_one();
  }
  filled_one_.wait(held, [&] { return closed_ || freed_ < filled_; });
  taking_ = freed_ < filled_;
  if (!taking_) return {};
  const Piece& piece = pieces_[freed_ % kPieces];
  return {piece.memory.get(), piece.size};
}

void PieceRing::close() {
  const std::scoped_lock held(mutex_);
  closed_ = true;
  filled_one_.notify_one();
  freed_one_.notify_one();
}

}  // namespace kiln
