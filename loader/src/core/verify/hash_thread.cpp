// SPDX-License-Identifier: Apache-2.0
#include "verify/hash_thread.hpp"

#include <algorithm>
#include <system_error>

namespace kiln {

HashThread::HashThread() {
  try {
    thread_ = std::thread([this] {
      for (;;) {
        const std::string_view bytes = ring_.to_take().bytes();
        if (bytes.empty()) return;
        hash_.update(bytes);
        ring_.taken();
      }
    });
  } catch (const std::system_error&) {  // no thread to be had: update() hashes
  }
}

void HashThread::update(std::string_view bytes) {
  if (!thread_.joinable()) return hash_.update(bytes);
  while (!bytes.empty()) {
    if (piece_ == nullptr) {
      piece_ = &ring_.to_fill();
      piece_->size = 0;
    }
    const std::size_t count = std::min(bytes.size(), piece_->room.size() - piece_->size);
    std::copy_n(bytes.begin(), count, piece_->room.data() + piece_->size);
    piece_->size += count;
    bytes.remove_prefix(count);
    if (piece_->size < piece_->room.size()) continue;
    ring_.filled();
    piece_ = nullptr;
  }
}

Digest HashThread::finish() {
  end();
  return hash_.finish();
}

void HashThread::end() {
  if (!thread_.joinable()) return;
  if (piece_ != nullptr) ring_.filled();
  ring_.to_fill().size = 0;  // an empty piece ends the thread
  ring_.filled();
  thread_.join();
}

}  // namespace kiln
