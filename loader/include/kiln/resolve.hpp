// SPDX-License-Identifier: Apache-2.0
//
// Resolve: pick one variant for one machine. Pure: no I/O, no globals, no environment. Every
// variant gets a Decision, refused ones with a reason that a person can act on; the order of the
// index does not change the answer. Before it: probe and fetch. After it: fetch of the chosen
// variant.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/target.hpp"

namespace kiln {

struct Index;  // manifest.hpp

/// What to compute on.
struct Device {
  enum class Kind { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;  ///< kAuto: GPU 0 where there is one, else the CPU
  int ordinal = 0;
  static Device automatic() { return {}; }
  static Device cpu() { return {Kind::kCpu, 0}; }
  static Device cuda(int ordinal) { return {Kind::kCuda, ordinal}; }
  bool operator==(const Device&) const = default;
};
std::string to_string(Device device);  ///< "auto", "cpu", "cuda:0"

/// Why a variant was refused: the first of these, in this order, that applies.
enum class Refusal {
  kNone,
  kLoaderTooOld,  ///< needs a newer Kiln
  kAbi,           ///< its C ABI is not one this loader speaks
  kArch,          ///< another CPU architecture
  kGlibc,         ///< this machine's glibc is older, or there is none
  kCpuLevel,      ///< needs instructions this CPU lacks
  kDevice,        ///< a CPU variant for a GPU request, or the reverse
  kDriver,        ///< the driver is older than the variant needs
  kNoDeviceCode,  ///< holds nothing that this GPU executes
  kLibrary,       ///< a library it looks up is not installed
  kPolicy,        ///< the caller ruled it out: denied it, pinned another variant, or no JIT
};
std::string_view to_string(Refusal refusal);  ///< "NO_DEVICE_CODE"

struct Decision {
  std::string variant;
  std::string digest;  ///< of its manifest
  Refusal refusal = Refusal::kNone;
  std::string detail;    ///< refused: found and needed; accepted: how its code fits
  std::size_t rank = 0;  ///< 1 is the best; accepted ones first, then by how many rules they pass
  bool accepted() const { return refusal == Refusal::kNone; }
};

struct Selection {
  Device device = {};
  std::string variant = {};  ///< if set, only this variant is taken
  bool allow_jit = true;     ///< whether PTX, compiled by the driver at first load, may be chosen
  /// Whether it must run on every visible GPU of the machine and not only on `device`: the answer
  /// is then the same for each of them. Without a GPU it means nothing.
  bool all_gpus = false;
  /// Ids of variants, or digests of their manifests ("sha256:…"), that are never taken. Anything
  /// else in it is a usage error.
  std::vector<std::string> deny = {};
};

struct Resolution {
  std::string name;
  int version = 0;
  Device device;          ///< never kAuto
  bool all_gpus = false;  ///< whether every GPU had to be covered
  Host host;
  std::optional<std::size_t> chosen;  ///< position in the index, and in decisions
  std::vector<Decision> decisions;    ///< one for each variant, in the index's order
  std::string hint;  ///< nothing chosen: the variant that came nearest, and what would make it fit

  /// The table of decisions as text, best first: what `kiln resolve` prints and errors carry.
  std::string explain() const;
};

/// Throws kUsage for a device that the machine does not have, and for a deny list that cannot be
/// meant.
Resolution resolve(const Host& host, const Index& index, const Selection& selection);

}  // namespace kiln
