// SPDX-License-Identifier: Apache-2.0
//
// Resolution: which variant a machine got, and why not each of the others: the decision that led to
// a Kernel. Refused variants have a reason that a person can act on. Pure values.
#pragma once

#include "kiln/compiler.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/device.hpp"
#include "kiln/error.hpp"
#include "kiln/host.hpp"

namespace kiln {

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
  bool jit = false;      ///< accepted: as PTX, which the driver compiles at the first load
  bool accepted() const { return refusal == Refusal::kNone; }
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
  /// Nothing chosen: kNoVariant; kUsage where this machine does not have the GPU that was asked
  /// for, kDevice where its driver does not say which GPUs there are.
  ErrorCode code = ErrorCode::kNoVariant;
  /// What `kiln tune` measured of the chosen variant on this machine, and whether calls take it;
  /// for people. Empty: nothing.
  std::string tuned = {};

  /// The table of decisions as text, best first: what `kiln resolve` prints and errors carry.
  /// Variants that were refused for one reason share a row; `decisions` has each.
  std::string explain() const;
};

}  // namespace kiln
