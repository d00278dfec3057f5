// SPDX-License-Identifier: Apache-2.0
//
// Kernel: a loaded package, and get_kernel, the whole pipeline in one call:
// probe -> resolve -> fetch -> verify -> cache -> unpack -> load.
//
// Threads: everything here may be called from several threads at once.
// Process: a loaded library stays until the process ends.
// Environment: it is read once, at the first call; a later setenv has no effect and races with
// nothing; the proxy variables of libcurl are among what is read.
// Signals and cancellation: SIGXFSZ does not reach the host; pthread_cancel waits for get_kernel.
// Fork: a fork waits for a load under way. A child may use the CPU kernels of its parent and may
// ask for more. CUDA does not survive a fork: a child must not use GPU kernels of its parent.
#pragma once

#include "kiln/compiler.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kiln/abi.h"
#include "kiln/device.hpp"
#include "kiln/error.hpp"
#include "kiln/op.hpp"
#include "kiln/request.hpp"
#include "kiln/resolution.hpp"
#include "kiln/tensor.hpp"

namespace kiln {

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

  /// An op with named arguments, from the header that `kiln build` makes of package.json:
  /// kernel.op<kiln::ops::geglu_mlp::Forward>().run({.x = x, …}). Compares one integer, so it costs
  /// nothing to speak of. Throws kUsage, and says what differs, if this kernel is of another
  /// package or takes other arguments than the header's; it may have more attributes.
  template <class Arguments>
  TypedOp<Arguments> op() const {
    return TypedOp<Arguments>(checked_op(Arguments::kSignature));
  }

  /// A layer over this kernel: kernel.layer<kiln::layers::GegluMlp>({.gate = …}). A layer is made
  /// of typed ops, and throws what op() does.
  template <class Layer>
  Layer layer(typename Layer::Weights weights) const {
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
  Op checked_op(const OpSignature& wanted) const;
  Op differing_op(const OpSignature& wanted) const;
  friend Kernel get_kernel(std::string_view, const Request&);
  Kernel(std::shared_ptr<const Loaded> loaded, int threads)
      : loaded_(std::move(loaded)), threads_(threads) {}
  std::shared_ptr<const Loaded> loaded_;
  int threads_;  ///< Request::threads
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

/// What get_kernel does up to the load: finds, installs and verifies, so that a later get_kernel of
/// this request needs no network. Loads nothing and starts no CUDA. Returns what is in the cache,
/// `available`. Throws what get_kernel throws.
Availability prefetch(std::string_view name, const Request& request);

/// Scratch memory that a layer owns: grows to what is asked and is freed with the object. Not for
/// use from two streams at once; growing synchronises the device. On a GPU it is in the context
/// that was current when it grew, if that is of the device, else in the primary one, which it
/// keeps. A copy is for the same device and has memory of its own, none at first.
class OwnedWorkspace {
 public:
  explicit OwnedWorkspace(Device device) : device_(device) {}
  OwnedWorkspace(const OwnedWorkspace& other) : OwnedWorkspace(other.device_) {}
  OwnedWorkspace& operator=(const OwnedWorkspace& other) {
    if (this != &other) *this = OwnedWorkspace(other);
    return *this;
  }
  OwnedWorkspace(OwnedWorkspace&&) = default;
  OwnedWorkspace& operator=(OwnedWorkspace&&) = default;
  ~OwnedWorkspace() = default;
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
