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

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kiln/abi.h"
#include "kiln/error.hpp"
#include "kiln/event.hpp"
#include "kiln/resolve.hpp"
#include "kiln/target.hpp"
#include "kiln/tensor.hpp"

namespace kiln {

/// How a verified library gets into the process.
enum class LoadMode {
  /// From a sealed copy in memory: the bytes that were hashed are the bytes that run. Debuggers and
  /// profilers see a memory file, "/memfd:kiln:<package>".
  kMemory,
  /// From its file in the cache, hashed just before, so that gdb, perf and nsys find it by name.
  /// Weaker: whoever may write to the cache can change the file between the hash and the load, or
  /// later. A library that this process has loaded already stays as it is. Also set by
  /// $KILN_LOAD_MODE ("path" or "memory"), for a program that cannot be changed.
  kPath,
};

/// What may be done, and nothing else, where no variant of the version fits.
struct Fallback {
  enum class Kind { kCpu, kVersion };
  Kind kind = Kind::kCpu;
  int version = 0;
  static Fallback cpu() { return {}; }  ///< the same version on the CPU
  /// Another version on the device that was asked for.
  static Fallback other_version(int version) { return {Kind::kVersion, version}; }
  bool operator==(const Fallback&) const = default;
};
std::string to_string(Fallback fallback);  ///< "cpu", "version:2"

/// What is asked for. Each field says its default and what another value costs.
struct Request {
  /// One published integer, which pins the exact build. Default 0: the lock file's; without a lock
  /// file it is required (kUsage).
  int version = 0;
  /// Default: GPU 0 where there is one, else the CPU. A device that is named is never exchanged for
  /// another one.
  Device device = {};
  /// Folder or http(s) URL. Default: $KILN_REGISTRY, else the one that Kiln was built with.
  std::string registry = {};
  /// Take this variant only. Default: the best one that fits. A pinned variant is portable to
  /// machines like this one alone.
  std::string variant = {};
  /// Whether PTX may be chosen. Default: yes, where no machine code fits; the driver then compiles
  /// it at the first load, which takes seconds.
  bool allow_jit = true;
  /// Ask the registry even if the cache can answer, hash what is cached, and fetch again what is
  /// damaged. Default: no. Costs one request and a read of every file of the variant each time.
  bool refresh = false;
  /// Absolute folder. Default: $KILN_CACHE, else $XDG_CACHE_HOME/kiln, else ~/.cache/kiln.
  std::filesystem::path cache = {};
  /// Told what happens, as it happens. Default: nobody. Not called where the kernel is in this
  /// process already, or where another thread loads it. See event.hpp for what it may do.
  Observer on_event = {};
  /// Stops a download, an unpacking or a wait with kCancelled; nothing half-done is left. Default:
  /// it cannot be stopped. A load that has begun is not interrupted.
  std::stop_token stop = {};
  /// Fetch nothing: what is not in the cache is kOffline, which says what to run where there is a
  /// network. Default: $KILN_OFFLINE (anything but "" and "0"), else no.
  bool offline = false;
  /// A lock file (`kiln lock`) that holds the request: registry, digests and, where `version` is 0,
  /// the version are the locked ones, and the registry's tag is not asked. kLock where the two
  /// disagree. Default: $KILN_LOCK, else none: the registry is believed for which digest a version
  /// has. Read when the kernel is first asked for.
  std::filesystem::path lock = {};
  /// Fetch from this mirror, folder or bundle file in place of `registry`, under whose name it is
  /// kept in the cache. Default: from the registry. A folder or a file may be read offline as well.
  std::string from = {};
  /// Default: from memory. kPath is for debuggers and profilers, and weaker.
  LoadMode load_mode = LoadMode::kMemory;
  /// What to try, in this order, where no variant fits (kNoVariant), and for no other error. Each
  /// is this request with that one change and without `variant`. Default: none, kNoVariant is
  /// thrown. What happened is in Kernel::fallback() and goes to on_event.
  std::vector<Fallback> fallback = {};
  /// Only a variant that runs on every visible GPU, so that one kernel serves them all. Default:
  /// no, the best one for `device`. The common one may be slower than the best.
  bool all_gpus = false;
  /// Variants that are never taken, by id or by the digest of their manifest ("sha256:…"). Default:
  /// none; those of the settings file are added.
  std::vector<std::string> deny = {};
};

/// One attribute of a call, by position in the op's schema; a default-constructed one takes the
/// schema's default. A string must outlive the call.
class Attribute {
 public:
  Attribute() = default;
  Attribute(std::int64_t value);
  Attribute(int value) : Attribute(std::int64_t{value}) {}
  Attribute(bool) = delete;  // no schema has one: say "tanh", 1, 7.0
  Attribute(double value);
  Attribute(const char* value);
  const kiln_attribute& c() const { return value_; }

 private:
  kiln_attribute value_{};
};

/// One operation of a loaded package. A small value; valid as long as the process.
class Op {
 public:
  std::string_view name() const;
  std::string_view schema() const;  ///< its tensors and attributes, as JSON

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
  std::string_view name() const;
  int version() const;
  std::string_view variant() const;      ///< "cu12.9-sm_90a-x86_64"
  Device device() const;                 ///< never automatic
  const Resolution& resolution() const;  ///< the decision trace that led here
  /// What was refused before a fallback of the request was taken, in order. Empty: none was needed.
  const std::vector<Resolution>& fallback() const;
  const std::filesystem::path& library() const;  ///< the verified file in the cache
  const kiln_package& package() const;           ///< the C table, for other languages

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
  struct Loaded;
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

/// What get_kernel would do offline, up to the load: reads the cache alone, asks no network, writes
/// nothing and throws nothing but std::bad_alloc. Reads and hashes what get_kernel would, the
/// library included (1 ms for 1 to 2 MB), every time: it is for the start of a program, not for its
/// loops. `offline` is taken as set; `refresh` and `from`, which are about fetching, and `on_event`
/// are passed over. The load itself can still fail (kLoad, kDevice).
Availability has_kernel(std::string_view name, const Request& request);

/// Scratch memory that a layer owns: grows to what is asked and is freed with the object. Not for
/// use from two streams at once; growing synchronises the device.
class OwnedWorkspace {
 public:
  explicit OwnedWorkspace(Device device) : device_(device) {}
  ~OwnedWorkspace();
  OwnedWorkspace(OwnedWorkspace&& other) noexcept;
  OwnedWorkspace& operator=(OwnedWorkspace&& other) noexcept;
  Workspace reserve(std::size_t bytes);  ///< throws kDevice if there is no memory

 private:
  Device device_;
  Workspace held_;
};

}  // namespace kiln
