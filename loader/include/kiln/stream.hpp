// SPDX-License-Identifier: Apache-2.0
//
// Stream: where a GPU call is enqueued. A value of one pointer, borrowed: the stream is the
// caller's and outlives the work on it. It is a type of its own so that no other pointer, to
// scratch memory say, is taken for one.
#pragma once

#include "kiln/compiler.hpp"

/// CUDA's own type behind cudaStream_t and CUstream, by name: no header of CUDA is needed here.
struct CUstream_st;

namespace kiln {

class Stream {
 public:
  /// CUDA's legacy default stream. On a CPU, where a call has finished when it returns, there is
  /// none, and this stands for it.
  constexpr Stream() = default;

  /// A cudaStream_t or a CUstream, cudaStreamPerThread too.
  constexpr Stream(CUstream_st* stream)  // NOLINT(google-explicit-constructor): the same thing
      : handle_(stream) {}

  /// A handle that has lost its type: from another language, or through a `void*` of one's own.
  static Stream of_handle(void* handle) { return {static_cast<CUstream_st*>(handle)}; }

  constexpr CUstream_st* handle() const { return handle_; }
  constexpr bool operator==(const Stream&) const = default;

 private:
  CUstream_st* handle_ = nullptr;
};

}  // namespace kiln
