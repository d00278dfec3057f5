// SPDX-License-Identifier: Apache-2.0
//
// Trace: what the driver was called with and what the GPU ran, by CUPTI's activity records, found
// at run time; and the same as the JSON that Perfetto and chrome://tracing open. A process that
// CUPTI is attached to launches more slowly for the rest of its life: times are taken before. One
// Recorder at a time.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "shared_library.hpp"

namespace gated_mlp_bench {

struct Activity {
  bool on_gpu = false;      ///< a kernel; else a call into the driver or the runtime
  std::string name;         ///< a kernel: its symbol
  std::uint64_t begin = 0;  ///< nanoseconds of CUPTI's clock
  std::uint64_t end = 0;
  std::uint32_t lane = 0;         ///< stream id, or thread id
  std::uint32_t correlation = 0;  ///< of a call and of the kernel it launched
  std::string detail;  ///< a kernel: "grid 132x1x1, block 384x1x1, 168 registers, 200 KB"
};

class Recorder {
 public:
  /// Null where no CUPTI is installed. Does not attach it yet.
  static std::unique_ptr<Recorder> find();
  ~Recorder();

  /// Attaches CUPTI at the first call. Throws std::runtime_error where this user may not trace.
  void start();
  /// Forgets what was recorded since start(): the first launches after it pay for its hooks. The
  /// GPU must be idle.
  void discard();
  /// What was recorded, by time. The GPU must be idle.
  std::vector<Activity> stop();

 private:
  explicit Recorder(SharedLibrary library) : library_(std::move(library)) {}
  SharedLibrary library_;
  bool attached_ = false;
};

/// A section of the trace: one contender's forward.
struct Section {
  std::string name;
  std::vector<Activity> activities;
};

/// Kernels' names in order, as readable_name() gives them.
std::vector<std::string> kernels_of(const std::vector<Activity>& activities);

/// A kernel's symbol demangled, without return type, template arguments and parameters:
/// "cublasLt::splitKreduce_kernel". A symbol that is not mangled stays what it is.
std::string readable_name(const std::string& symbol);

/// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: complete
/// events, microseconds; one process for the host, one for the GPU; an arrow from each launch to
/// its kernel. The sections stand 100 us apart: what lay between them is cut out.
void write_chrome_trace(const std::vector<Section>& sections, std::ostream& out);

}  // namespace gated_mlp_bench
