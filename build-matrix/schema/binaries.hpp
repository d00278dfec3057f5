// SPDX-License-Identifier: Apache-2.0
//
// Binaries: what package.json states of libraries and device images that exist, as typed values.
// Part of schema; after it: expand, and existing, which compares it with the files. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "build-matrix/schema/image_launch.hpp"
#include "documents/json_fwd.hpp"
#include "documents/target.hpp"

namespace kiln {
class JsonView;
}

namespace kiln::build {

struct OpSchema;

/// What one op calls in a tvm-ffi library.
struct FunctionCall {
  std::string op;
  std::string name;                    ///< exported as "__tvm_ffi_" and this
  std::vector<std::string> arguments;  ///< tensors and attributes of the op, in its order
  bool operator==(const FunctionCall&) const = default;
};

/// One library, or one image for GPUs, which becomes one variant.
struct Binary {
  enum class Abi {
    kKiln,    ///< exports kiln_package_v1: packed as it is
    kTvmFfi,  ///< exports __tvm_ffi_<name>: goes into a library that calls it
    kCuda,    ///< a cubin, PTX or a fatbin: goes into a library that launches its kernels
  };
  std::string file;  ///< relative to the package's folder
  Abi abi = Abi::kKiln;
  CpuLevel cpu;
  Version glibc;                     ///< the oldest that it runs on
  std::vector<std::string> needs;    ///< sonames that are looked for on the user's machine
  std::vector<std::string> carries;  ///< kTvmFfi: files of libraries that come along, in load order
  std::optional<Version> toolkit;    ///< set for one with GPU code, as is the next one
  std::vector<DeviceCode> targets;
  std::vector<FunctionCall> functions;  ///< kTvmFfi: one for each op, in the order of the ops
  std::vector<ImageLaunch> launches;    ///< kCuda

  std::string variant() const;  ///< "cpu-x86-64-v3", "cu12.9-sm_90a.compute_80-x86_64"
  std::optional<Version> min_driver() const;  ///< set where toolkit is
};

/// The value of "binaries". Throws what JsonView throws.
std::vector<Binary> parse_binaries(const JsonView& value, const std::vector<OpSchema>& ops);

}  // namespace kiln::build
