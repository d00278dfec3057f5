// SPDX-License-Identifier: Apache-2.0
//
// Request: what get_kernel and has_kernel are asked for besides a package's name. A value: copy it
// freely; what its members say of the environment is in kernel.hpp.
#pragma once

#include "kiln/compiler.hpp"

#include <filesystem>
#include <stop_token>
#include <string>
#include <vector>

#include "kiln/device.hpp"
#include "kiln/event.hpp"

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
  /// Folder or http(s) URL. Default: $KILN_REGISTRY, else the settings', else the one of Kiln's
  /// prefix.
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
  /// What `kiln build` left in build/kernels/NAME may be named too, while a package is written:
  /// it is a registry of its own, to be trusted as one, and each process reads it again.
  std::string from = {};
  /// Default: from memory. kPath is for debuggers and profilers, and weaker.
  LoadMode load_mode = LoadMode::kMemory;
  /// What to try, in this order, where no variant fits (kNoVariant), where this machine does not
  /// have the GPU that was asked for (kUsage), and where its driver does not start (kDevice); for
  /// no other error. Each is this request with that one change and without `variant`. Default:
  /// none, the error is thrown. What happened is in Kernel::fallback() and goes to on_event.
  std::vector<Fallback> fallback = {};
  /// Only a variant that runs on every visible GPU, so that one kernel serves them all. Default:
  /// no, the best one for `device`. The common one may be slower than the best.
  bool all_gpus = false;
  /// Variants that are never taken, by id or by the digest of their manifest ("sha256:…"). Default:
  /// none; those of the settings file are added.
  std::vector<std::string> deny = {};
  /// The most CPU threads that a call of this kernel computes with, the caller's counted. It only
  /// lowers what the affinity mask, the control groups' quota and $OMP_NUM_THREADS allow. Default:
  /// 0, no bound of its own. Not part of which kernel is meant: two requests that differ in it
  /// share one loaded library.
  int threads = 0;
};

}  // namespace kiln
