// SPDX-License-Identifier: Apache-2.0
#include "verify/hash_thread.hpp"

namespace kiln {

void HashThread::update(std::string_view bytes) {
  gathered_ += bytes;
  if (gathered_.size() < kPieceBytes) return;
  if (hashed_.valid()) hashed_.get();
  piece_.swap(gathered_);
  gathered_.clear();
  // Without std::launch::async: where there is no thread to be had, get() hashes.
  hashed_ = std::async([this] { hash_.update(piece_); });
}

Digest HashThread::finish() {
  if (hashed_.valid()) hashed_.get();
  hash_.update(gathered_);
  return hash_.finish();
}

}  // namespace kiln
