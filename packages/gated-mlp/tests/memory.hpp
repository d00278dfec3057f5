// SPDX-License-Identifier: Apache-2.0
//
// Memory: the application's side of a test: memory, streams and graphs of the device that a kernel
// runs on. On a GPU they come from the CUDA runtime, found at run time, as an application would
// have it beside Kiln; so this builds on a machine without CUDA. Threads: any, but capture.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "kiln/device.hpp"

namespace gated_mlp_test {

/// What a plan is made for; zeros on a CPU.
struct Limits {
  int multiprocessors = 0;
  int shared_bytes_per_block = 0;
};

class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* allocate(std::size_t bytes) = 0;  ///< 256-byte aligned
  virtual void release(void* address) = 0;
  /// Has arrived when it returns: in every stream.
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill(void* to, unsigned char byte, std::size_t bytes) = 0;  ///< as upload
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  virtual void* make_stream() = 0;
  virtual void release_stream(void* stream) = 0;
  virtual void synchronize() = 0;  ///< the whole device
  virtual bool is_gpu() const = 0;
  virtual Limits limits() const = 0;

  /// Records `work` as a CUDA graph and replays it `times` times; returns milliseconds a replay.
  virtual float replay(void* stream, int times, const std::function<void()>& work) = 0;
};

/// Throws std::runtime_error if there is no CUDA runtime for a GPU.
std::unique_ptr<Memory> open_memory(kiln::Device device);

}  // namespace gated_mlp_test
