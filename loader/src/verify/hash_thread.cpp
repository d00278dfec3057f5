// SPDX-License-Identifier: Apache-2.0
#include "verify/hash_thread.hpp"

#include <algorithm>

namespace kiln {

HashThread::HashThread() : thread_([this] { hash_pieces(); }) {}

HashThread::~HashThread() {
  end();
}

void HashThread::update(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), piece_.size() - used_);
    std::copy_n(bytes.begin(), count, piece_.begin() + static_cast<std::ptrdiff_t>(used_));
    used_ += count;
    bytes.remove_prefix(count);
    if (used_ < piece_.size()) return;
    ring_.fill(used_);
    piece_ = ring_.room();
    used_ = 0;
  }
}

void HashThread::hash_pieces() {
  for (std::string_view piece = ring_.next(); !piece.empty(); piece = ring_.next()) {
    if (failure_) continue;
    try {
      hash_.update(piece);
    } catch (...) {
      failure_ = std::current_exception();  // for finish(), on the thread that can be told
    }
  }
}

void HashThread::end() {
  if (!thread_.joinable()) return;
  if (used_ > 0) ring_.fill(used_);
  ring_.close();
  thread_.join();
}

Digest HashThread::finish() {
  end();
  if (failure_) std::rethrow_exception(failure_);
  return hash_.finish();
}

}  // namespace kiln
