// SPDX-License-Identifier: Apache-2.0
//
// Gpu: memory, one stream, graphs and modules of one GPU through CUDA's driver, which is all that a
// machine with Kiln must have. Errors are std::runtime_error with the driver's own name for them.
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "shared_library.hpp"

namespace gated_mlp_bench {

class Gpu {
 public:
  explicit Gpu(int ordinal);  ///< makes its primary context current
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const std::string& name() const { return name_; }
  const std::string& bus_id() const { return bus_id_; }   ///< "00000000:1B:00.0", for NVML
  int driver_version() const { return driver_version_; }  ///< of CUDA: 13000
  int multiprocessors() const { return multiprocessors_; }
  std::pair<int, int> capability() const { return capability_; }
  void* stream() const { return stream_; }
  void synchronize() const;

  /// Device memory, freed with the object.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(const Gpu& gpu, std::size_t bytes);
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();
    // The driver gives addresses as integers, and nothing here is read through the pointer.
    void* data() const {
      return reinterpret_cast<void*>(address_);  // NOLINT(performance-no-int-to-ptr)
    }
    std::size_t size() const { return bytes_; }
    void upload(const void* from, std::size_t bytes);
    void download(void* to, std::size_t bytes) const;
    void fill(unsigned char byte);

   private:
    const Gpu* gpu_ = nullptr;
    std::uint64_t address_ = 0;
    std::size_t bytes_ = 0;
  };

  /// What `work` enqueues on stream(), as a graph.
  class Graph {
   public:
    Graph(const Gpu& gpu, const std::function<void()>& work);
    Graph(Graph&& other) noexcept;
    Graph& operator=(Graph&&) = delete;
    ~Graph();
    double milliseconds(int times) const;  ///< of one replay, over that many back to back

   private:
    const Gpu* gpu_;
    void* graph_ = nullptr;
    void* executable_ = nullptr;
  };

  /// A kernel of an image (cubin or PTX). The module is never unloaded.
  void* load(const std::string& image, const char* kernel) const;
  void launch(void* kernel, unsigned blocks, unsigned threads, void** arguments) const;

 private:
  template <class... Arguments>
  void call(const char* name, Arguments... arguments) const;
  void check(const char* name, int status) const;

  SharedLibrary driver_;
  std::string name_;
  std::string bus_id_;
  int driver_version_ = 0;
  int multiprocessors_ = 0;
  std::pair<int, int> capability_;
  void* stream_ = nullptr;
  // Looked up once: host times of a launch must not have a dlsym in them.
  int (*launch_kernel_)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        void*, void**, void**) = nullptr;
};

}  // namespace gated_mlp_bench
