// SPDX-License-Identifier: Apache-2.0
//
// Resolve: pick one variant for one machine. Pure: no I/O, no globals, no environment. Every
// variant gets a Decision, refused ones with a reason that a person can act on; the order of the
// index does not change the answer. Before it: probe and find_index. After it: pull of the chosen
// variant.
#pragma once

#include <string>
#include <vector>

#include "base/digest.hpp"
#include "documents/advisory.hpp"
#include "documents/variant.hpp"
#include "kiln/device.hpp"
#include "kiln/host.hpp"
#include "kiln/resolution.hpp"

namespace kiln {

struct Index;  // documents/variant.hpp

/// A variant whose numeric check failed on this machine.
struct FailedHere {
  Digest manifest;
  std::string hardware;  ///< the GPU, as it names itself; empty: the CPU
  std::string text;      ///< where and when, and what runs it again; for people
};

/// What is asked of resolve.
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
  Tested tested = Tested::kAny;
  /// Not taken where tested variants are asked for, whatever their publisher tested.
  std::vector<FailedHere> failed_here = {};
  /// Of this version, whose variants are not taken.
  std::vector<Advisory> advisories = {};
};

/// Throws kUsage for a deny list that cannot be meant, and for every GPU and the CPU at once. A GPU
/// that the machine does not have, or whose driver does not start, is in Resolution::code.
Resolution resolve(const Host& host, const Index& index, const Selection& selection);

}  // namespace kiln
