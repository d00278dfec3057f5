// SPDX-License-Identifier: Apache-2.0
//
// Codegen: the C++ that the build adds to a package's own sources: the argument structs, the tables
// that the SDK's checker walks, the C ABI table, the tvm-ffi exports and the embedded device
// images. Before it: schema. After it: the host compiler. Pure: values in, text out; the same
// values give the same text.
//
//   package.gen.hpp   generate_header   the same for every variant; package sources include it
//   package.gen.cpp   generate_glue     tables and thin functions; build_id and device differ
//   images.gen.cpp    generate_images   CUDA variants only; one section an image
//   exports.map       generate_exports  version script: exactly the symbols that callers may use
#pragma once

#include <span>
#include <string>
#include <vector>

#include "build-matrix/schema/schema.hpp"

namespace kiln::build {

enum class Backend { kCuda, kCpu };

/// What package.gen.cpp says about one variant.
struct GlueFacts {
  Backend backend = Backend::kCpu;
  std::string build_id;                ///< hex digest; ends up in kiln_package.build_id
  std::vector<std::string> libraries;  ///< sonames that the variant looks up at run time
  bool carries = false;  ///< it has libraries inside: see calls.hpp. Nobody looks up `libraries`
};

/// One compiled device source, to be embedded.
struct DeviceImage {
  std::string stem;    ///< DeviceSource::stem
  std::string path;    ///< as #embed finds it: absolute, or relative to images.gen.cpp
  std::string sha256;  ///< hex, of the file's bytes; written into the text, because a compiler
                       ///< cache may not see that an embedded file changed
  bool ptx = false;    ///< text that the driver compiles; a NUL is appended to it
};

std::string generate_header(const Package& package);
std::string generate_glue(const Package& package, const GlueFacts& facts);
/// A table of every image, in the given order; an empty list is allowed (a variant that has none).
std::string generate_images(std::span<const DeviceImage> images);
std::string generate_exports(const Package& package);

/// The SDK's sources that are compiled into every package with this backend, relative to
/// build-matrix/sdk/src. Their include folders: build-matrix/sdk/include, loader/include, dlpack's.
std::vector<std::string> sdk_sources(Backend backend);

}  // namespace kiln::build
