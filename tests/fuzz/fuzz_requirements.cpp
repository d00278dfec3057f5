// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a project's kiln.json: refused by name, or names and versions that can be asked for.
#include "documents/names.hpp"
#include "documents/requirements.hpp"
#include "fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln;
  fuzz::accepts({ErrorCode::kUsage, ErrorCode::kUpgrade}, [&] {
    const Requirements read = parse_requirements(fuzz::text_of(data, size), "kiln.json");
    for (const auto& [name, version] : read.kernels) {
      fuzz::require(is_package_name(name) && version >= 1, "a kernel has a name and a version");
    }
  });
  return 0;
}
