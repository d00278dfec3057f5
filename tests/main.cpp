// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstdlib>

// As the program starts, before Kiln copies the environment and before there are threads.
[[maybe_unused]] static const int kUnsignedIsSet = ::setenv("KILN_UNSIGNED", KILN_TEST_UNSIGNED, 0);
