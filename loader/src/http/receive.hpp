// SPDX-License-Identifier: Apache-2.0
//
// Receive: one HTTP answer as libcurl hands it over, piece by piece: which headers count, which
// body is taken. Part of transfer. One Receiver is for one answer, on one thread.
#pragma once

#include <cstdint>
#include <exception>
#include <string_view>

#include "http/transfer.hpp"

namespace kiln {

class Receiver {
 public:
  Receiver(const HttpRequest& request, const Sink& sink, HttpAnswer& answer)
      : request_(request), sink_(sink), answer_(answer) {}

  /// libcurl's callbacks; `self` is the Receiver. An exception must not cross libcurl's C frames:
  /// it waits in failure(), and libcurl stops.
  static std::size_t body(char* data, std::size_t, std::size_t size, void* self);
  static std::size_t header(char* data, std::size_t, std::size_t size, void* self);

  std::exception_ptr failure() const { return failure_; }
  /// The rest of a body that nobody wants was not waited for: the answer stands all the same.
  bool enough() const { return enough_; }
  /// After the last byte: a body that was to be taken and has none begins here.
  void finish();

 private:
  void take_header(std::string_view line);
  bool wants_body();
  void begin_body();

  const HttpRequest& request_;
  const Sink& sink_;
  HttpAnswer& answer_;
  std::exception_ptr failure_ = nullptr;
  std::string encoding_ = {};
  std::uint64_t header_bytes_ = 0;
  std::uint64_t dropped_ = 0;  ///< of a body that nobody wants
  bool begun_ = false;
  bool enough_ = false;
};

}  // namespace kiln
