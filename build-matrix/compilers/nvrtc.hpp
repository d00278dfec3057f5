// SPDX-License-Identifier: Apache-2.0
//
// Nvrtc: one CUDA toolkit's compiler as a library, loaded by path, so that several toolkits compile
// in one build without any of them being installed. Text in, machine code or PTX out. Use one
// object from one thread at a time.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "documents/target.hpp"

namespace kiln::build {

/// What the compiler made of a source.
struct Compiled {
  bool ok = false;
  std::string image;  ///< a cubin, or PTX text without a NUL
  std::string log;    ///< its messages, and what ptxas says of each kernel
};

class Nvrtc {
 public:
  /// Throws Error(kBuild) if the library does not load or is older than CUDA 11.1.
  explicit Nvrtc(const std::filesystem::path& library);
  ~Nvrtc();
  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  /// "12.9.86": by compiling nothing to PTX, whose header names the exact compiler.
  std::string compiler_version() const;

  /// `name` is what messages call the source.
  Compiled compile(const std::string& source, const std::string& name, const DeviceCode& target,
                   const std::vector<std::string>& options) const;

 private:
  struct Library;
  std::unique_ptr<const Library> library_;
};

/// The options every device source is compiled with, but for include folders: part of the build id.
std::vector<std::string> device_options(const DeviceCode& target);

/// Of the code that calls the compiler, which decides with it what comes out.
std::string nvrtc_step_digest();

/// The log without what changes from run to run (ptxas's compile times) and without empty lines.
std::string stable_log(const std::string& log);

}  // namespace kiln::build
