// SPDX-License-Identifier: Apache-2.0
#include "verify/hash_thread.hpp"

#include <algorithm>

namespace kiln {

HashThread::HashThread() {
  for (std::string& piece : pieces_) piece.reserve(kPieceBytes);
  thread_ = std::jthread([this](const std::stop_token& stop) { hash_pieces(stop); });
}

void HashThread::update(std::string_view bytes) {
  while (!bytes.empty()) {
    std::string& piece = pieces_[filled_ % kPieces];
    const std::size_t count = std::min(bytes.size(), kPieceBytes - piece.size());
    piece += bytes.substr(0, count);
    bytes.remove_prefix(count);
    if (piece.size() == kPieceBytes) hand_over();
  }
}

void HashThread::hand_over() {
  std::unique_lock held(mutex_);
  ++filled_;
  filled_one_.notify_one();
  hashed_one_.wait(held, [&] { return filled_ - hashed_ < kPieces; });
}

void HashThread::hash_pieces(const std::stop_token& stop) {
  std::unique_lock held(mutex_);
  // Goes on after a stop until nothing is left.
  while (filled_one_.wait(held, stop, [&] { return hashed_ < filled_; })) {
    std::string& piece = pieces_[hashed_ % kPieces];
    held.unlock();
    try {
      hash_.update(piece);
    } catch (...) {
      failure_ = std::current_exception();  // for finish(), on the thread that can be told
    }
    piece.clear();
    held.lock();
    ++hashed_;
    hashed_one_.notify_one();
  }
}

Digest HashThread::finish() {
  if (thread_.joinable()) {
    hand_over();  // the last piece, which may be empty
    thread_.request_stop();
    thread_.join();
  }
  if (failure_) std::rethrow_exception(failure_);
  return hash_.finish();
}

}  // namespace kiln
