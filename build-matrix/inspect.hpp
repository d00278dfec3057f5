// SPDX-License-Identifier: Apache-2.0
//
// Inspect: read the linked library and say what it really is: which CPU architecture, which glibc,
// which GPUs its embedded images are for, and whether its list of kernels (kernel_list() of the
// SDK) is what the images have: the linker sees the names of neither. What is promised in a
// manifest is what was read here, and a library that is not what its variant asked for is refused.
// Before it: the linker. After it: pack. Pure but for read_image, which asks cuobjdump.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "documents/json_fwd.hpp"
#include "documents/target.hpp"
#include "elf.hpp"

namespace kiln::build {

/// One piece of device code inside the library.
struct Image {
  std::string stem;
  DeviceCode code;
  std::uint64_t size = 0;
  std::vector<std::string> kernels;  ///< the names of its functions for the host, sorted
  bool operator==(const Image&) const = default;
};

/// What the variant should be.
struct Promise {
  std::string subject;  ///< "geglu-mlp cu12.9-sm_90a-x86_64"
  Arch arch = Arch::kX86_64;
  Version glibc;  ///< highest that may be needed
  std::string soname;
  std::string build_id;
  std::vector<std::string> stems;  ///< one image each, compiled for `target`
  DeviceCode target;
};

struct Facts {
  Arch arch = Arch::kX86_64;
  Version glibc;             ///< highest GLIBC_x.y that a symbol asks for
  std::string glibc_symbol;  ///< that symbol; empty if none asks
  std::vector<std::string> exported;
  std::vector<std::string> needed;
  std::vector<Image> images;
};

/// The images' bytes as they lie in the library, by stem.
struct EmbeddedImage {
  std::string stem;
  std::string_view bytes;
};
std::vector<EmbeddedImage> embedded_images(const ElfLibrary& library);

/// What one embedded image is compiled for: PTX by its .target line, machine code by what cuobjdump
/// says; and its kernels. Throws Error(kBuild).
Image read_image(const EmbeddedImage& image, const std::filesystem::path& cuobjdump,
                 const std::filesystem::path& scratch);

/// Everything that is not as promised, in a fixed order; empty if the library is good. `facts` gets
/// what was read; its images must be filled in already.
std::vector<std::string> find_violations(const ElfLibrary& library, std::string_view bytes,
                                         const Promise& promise, Facts& facts);

/// Reads, checks, and throws Error(kBuild) "inspect <subject>: <first>; <second>; …" on violations.
Facts inspect(const std::filesystem::path& library, const Promise& promise,
              const std::filesystem::path& cuobjdump, const std::filesystem::path& scratch);

Json to_json(const Facts& facts);
Facts parse_facts(const Json& json, const std::string& subject);

}  // namespace kiln::build
