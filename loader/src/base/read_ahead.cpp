// SPDX-License-Identifier: Apache-2.0
#include "base/read_ahead.hpp"

#include <utility>

namespace kiln {

ReadAhead::ReadAhead(Read read) : read_(std::move(read)), thread_([this] { read_pieces(); }) {}

ReadAhead::~ReadAhead() {
  ring_.close();
  thread_.join();
}

void ReadAhead::read_pieces() {
  try {
    for (std::span<char> room = ring_.room(); !room.empty(); room = ring_.room()) {
      const std::size_t count = read_(room);
      if (count == 0) break;
      ring_.fill(count);
    }
  } catch (...) {
    failure_ = std::current_exception();
  }
  ring_.close();
}

std::string_view ReadAhead::next() {
  const std::string_view piece = ring_.next();
  if (piece.empty() && failure_) std::rethrow_exception(failure_);
  return piece;
}

}  // namespace kiln
