// SPDX-License-Identifier: Apache-2.0
//
// Kernel: a loaded package, and get_kernel, the whole pipeline in one call:
// probe -> resolve -> fetch -> verify -> cache -> unpack -> load.
//
// Threads: everything here may be called from several threads at once.
// Process: a loaded library stays until the process ends.
// Environment: it is read once, at the first call; a later setenv has no effect and is no race.
// libcurl reads its proxy variables itself, at each download.
// Signals and cancellation: SIGXFSZ does not reach the host; pthread_cancel waits for get_kernel.
// Fork: a fork waits for a load under way. A child may use the CPU kernels of its parent and may
// ask for more. CUDA does not survive a fork: a child must not use GPU kernels of its parent.
#pragma once

#include "kiln/compiler.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kiln/abi.h"
#include "kiln/device.hpp"
#include "kiln/error.hpp"
#include "kiln/request.hpp"
#include "kiln/resolution.hpp"
#include "kiln/tensor.hpp"

namespace kiln {

/// One attribute of a call, by position in the op's schema; a default-constructed one takes the
/// schema's default. A string must outlive the call.
class Attribute {
 public:
  Attribute() = default;
  Attribute(std::int64_t value) : value_{KILN_ATTRIBUTE_INT, 0, {.as_int = value}} {}
  Attribute(int value) : Attribute(std::int64_t{value}) {}
  Attribute(bool) = delete;  // no schema has one: say "tanh", 1, 7.0
  Attribute(double value) : value_{KILN_ATTRIBUTE_FLOAT, 0, {.as_float = value}} {}
  Attribute(const char* value) : value_{KILN_ATTRIBUTE_STRING, 0, {.as_string = value}} {}
  const kiln_attribute& c() const { return value_; }

 private:
  kiln_attribute value_{};
};

/// One operation of a loaded package. A small value; valid as long as the process.
class Op {
 public:
  std::string_view name() const { return op_->name; }
  std::string_view schema() const { return op_->schema; }  ///< its tensors and attributes, as JSON

  /// Scratch memory that run() needs for these arguments. Looks at shapes and dtypes only.
  /// Throws kInvalidCall.
  std::size_t workspace_bytes(std::span<const Tensor> tensors,
                              std::span<const Attribute> attributes = {}) const;

  /// Checks the arguments, then enqueues on `stream` (cudaStream_t or CUstream) and returns; a CPU
  /// op has finished when this returns. Allocates nothing, does not synchronise, can be captured in
  /// a CUDA graph. Throws kInvalidCall for arguments that do not fit, kDevice if the driver
  /// refuses.
  void run(std::span<const Tensor> tensors, std::span<const Attribute> attributes,
           Workspace workspace, void* stream) const;

  const kiln_op& c() const { return *op_; }  ///< its entry of the C table, for other languages

 private:
  friend class Kernel;
  Op(const kiln_op* op) : op_(op) {}
  const kiln_op* op_;
};

/// An op that a typed layer calls, and the order in which it gives arguments: "x, gate, up, down,
/// gate_bias?, y; approximate". '?' marks what may be left out. The package's op must have the same
/// tensors; it may have more attributes.
struct LayerOp {
  std::string_view op;
  std::string_view signature;
};

class Kernel {
 public:
  std::string_view name() const { return loaded_->name; }
  int version() const { return loaded_->package->version; }
  std::string_view variant() const { return loaded_->variant; }  ///< "cu12.9-sm_90a-x86_64"
  Device device() const { return loaded_->device; }              ///< never automatic
  /// The decision trace that led here.
  const Resolution& resolution() const { return loaded_->resolution; }
  /// What was refused before a fallback of the request was taken, in order. Empty: none was needed.
  const std::vector<Resolution>& fallback() const { return loaded_->refused; }
  /// The verified file in the cache.
  const std::filesystem::path& library() const { return loaded_->library; }
  /// The C table, for other languages.
  const kiln_package& package() const { return *loaded_->package; }

  Op op(std::string_view name) const;  ///< throws kNotFound, listing the ops there are

  /// A typed layer over this kernel: kernel.layer<kiln::layers::GegluMlp>({.gate = …}). Throws
  /// kUsage if the layer was compiled for another package, or for other arguments of its ops
  /// (Layer::kPackage, Layer::kOps).
  template <class Layer>
  Layer layer(typename Layer::Weights weights) const {
    check_layer(Layer::kPackage, Layer::kOps);
    return Layer(*this, std::move(weights));
  }

 private:
  struct Loaded {
    std::string name;
    std::string variant;
    Device device;
    Resolution resolution;
    std::vector<Resolution> refused;
    std::filesystem::path library;
    const kiln_package* package;
  };
  void check_layer(std::string_view package, std::span<const LayerOp> ops) const;
  friend Kernel get_kernel(std::string_view, const Request&);
  explicit Kernel(std::shared_ptr<const Loaded> loaded) : loaded_(std::move(loaded)) {}
  std::shared_ptr<const Loaded> loaded_;
};

/// Finds, installs, verifies and loads one version of a package for this machine. A second call
/// with the same request returns the same kernel without touching disk or network. Throws Error:
/// see ErrorCode for the stages; and what on_event throws. Of several threads that ask for the same
/// kernel at once, one loads it and the others wait; if it fails, each goes on with its own
/// request. kUsage if it is called from within on_event.
Kernel get_kernel(std::string_view name, const Request& request);

/// Whether the cache has what get_kernel would load.
struct Availability {
  bool available = false;
  ErrorCode code = ErrorCode::kInternal;  ///< not available: what get_kernel would throw
  std::string reason;                     ///< not available: why, and what to do
  std::string variant;                    ///< which variant it is, as far as that is known
  int version = 0;                        ///< of that variant: a fallback may be another one
  Device device;                          ///< never automatic where `variant` is known
  explicit operator bool() const { return available; }
};

/// What get_kernel would do offline, up to the load: reads the cache, asks no network, installs
/// nothing and throws nothing but std::bad_alloc. All that it may write is what it remembers: which
/// signatures held, beside trust.json, and the lock file of a cache that lacks it. Hashes what
/// get_kernel would, the library too (1 ms for 1 to 2 MB): for a program's start, not its loops.
/// `offline` is set; `refresh`, `from`, `on_event` are passed over. The load itself can still fail.
Availability has_kernel(std::string_view name, const Request& request);

/// Scratch memory that a layer owns: grows to what is asked and is freed with the object. Not for
/// use from two streams at once; growing synchronises the device. On a GPU it is in the context
/// that was current when it grew, if that is of the device, else in the primary one, which it
/// keeps.
class OwnedWorkspace {
 public:
  explicit OwnedWorkspace(Device device) : device_(device) {}
  Workspace reserve(std::size_t bytes);  ///< throws kDevice if there is no memory

 private:
  struct Free {
    Device device;
    void* context;  ///< on a GPU: the CUcontext that the memory is in
    bool retained_primary;
    void operator()(void* memory) const noexcept;
  };

  Device device_;
  std::size_t bytes_ = 0;
  std::unique_ptr<void, Free> memory_;
};

}  // namespace kiln
