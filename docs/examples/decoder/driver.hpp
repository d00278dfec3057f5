// SPDX-License-Identifier: Apache-2.0
//
// Driver: the little of CUDA's driver that the program itself needs, by name out of libcuda.so.1:
// copies, a stream, a graph. Kiln has loaded the library and made the context. On a CPU everything
// is memory of this process.
#pragma once

#include <functional>
#include <kiln/kiln.hpp>

// Memory of a device.
class Memory {
 public:
  Memory(kiln::Device device, std::size_t bytes);
  void* data() const { return data_; }
  void write(const void* from, std::size_t bytes, std::size_t at = 0);
  void read(void* to, std::size_t bytes) const;  // waits for the stream

 private:
  kiln::OwnedWorkspace owned_;
  bool on_gpu_;
  std::byte* data_;
};

// Where the calls go. On a GPU what is run for the first time is recorded, and runs again as a CUDA
// graph.
class Queue {
 public:
  explicit Queue(kiln::Device device);

  kiln::Stream stream() const { return kiln::Stream::of_handle(stream_); }
  // `work` must be the same each time.
  void run(const std::function<void(kiln::Stream)>& work);
  void wait() const;

 private:
  bool on_gpu_;
  void* stream_ = nullptr;  // the driver takes it and the graph back when the process ends
  void* graph_ = nullptr;
};
