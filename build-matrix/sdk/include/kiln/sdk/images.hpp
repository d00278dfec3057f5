// SPDX-License-Identifier: Apache-2.0
//
// Images: the device code embedded in a GPU package. The build writes the table (images.gen.cpp),
// each image in an ELF section of its own, ".kiln.image.<stem>", where inspection finds it again.
// After it: device.cpp hands the bytes to the driver.
#pragma once

#include <stddef.h>

namespace kiln::sdk {

struct Image {
  const char* stem;            // of the device source; KernelSpec::image names it
  const unsigned char* bytes;  // a cubin, or NUL-terminated PTX
  size_t size;
};
extern const Image kImages[];
extern const int kImageCount;

}  // namespace kiln::sdk
