// SPDX-License-Identifier: Apache-2.0
//
// The C ABI grows. This test's loader was compiled with an abi.h that has a field more in each
// table, as a later minor would: what is published today loads in it, and a package of its own time
// too.
#include <doctest/doctest.h>

#include "check_add.hpp"
#include "kiln/kiln.hpp"
#include "published.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

static_assert(KILN_ABI_MINOR == 1000, "this is the grown abi.h");
static_assert(sizeof(kiln_package) > KILN_PACKAGE_FIRST_BYTES);
static_assert(sizeof(kiln_op) > KILN_OP_FIRST_BYTES);
static_assert(sizeof(kiln_call) > KILN_CALL_FIRST_BYTES);

TEST_CASE("abi: a package of today loads and runs in a loader whose tables have grown") {
  for (const char* library : {"plain", "grown"}) {
    CAPTURE(library);
    Scratch scratch;
    Published published(scratch / "registry");
    published.publish({cpu_draft(sample_library(library))});
    check_add(get_kernel("sample", {.version = 1,
                                    .device = Device::cpu(),
                                    .registry = published.root().string(),
                                    .cache = scratch / "cache"}));
  }
}

}  // namespace
}  // namespace kiln::test
