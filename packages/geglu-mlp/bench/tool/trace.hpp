// SPDX-License-Identifier: Apache-2.0
//
// Trace: what the driver was called with and what the GPU ran, by CUPTI's activity records, found
// at run time; and the same as the JSON that Perfetto and chrome://tracing open. One Recorder at a
// time.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "shared_library.hpp"

namespace geglu_mlp_bench {

struct Activity {
  bool on_gpu = false;  ///< a kernel; else a call into the driver or the runtime
  std::string name;
  std::uint64_t begin = 0;  ///< nanoseconds of CUPTI's clock
  std::uint64_t end = 0;
  std::uint32_t lane = 0;         ///< stream id, or thread id
  std::uint32_t correlation = 0;  ///< of a call and of the kernel it launched
  std::string detail;  ///< a kernel: "grid 132x1x1, block 384x1x1, 168 registers, 200 KB"
};

class Recorder {
 public:
  /// Null where no CUPTI is installed, or the driver does not let this user trace; `reason` says.
  static std::unique_ptr<Recorder> find(std::string& reason);
  ~Recorder();

  void start();
  /// What was recorded since start(), by time. The GPU must be idle.
  std::vector<Activity> stop();

 private:
  explicit Recorder(SharedLibrary library) : library_(std::move(library)) {}
  SharedLibrary library_;
};

/// A section of the trace: one contender's forward.
struct Section {
  std::string name;
  std::vector<Activity> activities;
};

/// Kernels' names in order.
std::vector<std::string> kernels_of(const std::vector<Activity>& activities);

/// A mangled or templated kernel name, short enough for a table.
std::string short_name(const std::string& kernel, std::size_t most);

/// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: complete
/// events, microseconds; one process for the host, one for the GPU; an arrow from each launch to
/// its kernel.
void write_chrome_trace(const std::vector<Section>& sections, std::ostream& out);

}  // namespace geglu_mlp_bench
