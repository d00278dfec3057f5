// SPDX-License-Identifier: Apache-2.0
//
// The C ABI's layout, frozen: a released field never moves. A number here may be added, together
// with a higher KILN_ABI_MINOR; one that changes breaks every package that is published.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>

#include "kiln/abi.h"

static_assert(KILN_ABI_MAJOR == 1);
static_assert(KILN_ABI_MINOR == 1);

static_assert(KILN_OK == 0);
static_assert(KILN_INVALID_ARGUMENT == 1);
static_assert(KILN_UNSUPPORTED == 2);
static_assert(KILN_DEVICE_ERROR == 3);
static_assert(KILN_ATTRIBUTE_DEFAULT == 0);
static_assert(KILN_ATTRIBUTE_INT == 1);
static_assert(KILN_ATTRIBUTE_FLOAT == 2);
static_assert(KILN_ATTRIBUTE_STRING == 3);

static_assert(sizeof(kiln_error) == 512);
static_assert(offsetof(kiln_error, status) == 0);
static_assert(offsetof(kiln_error, text) == 4);

static_assert(sizeof(kiln_attribute) == 16);
static_assert(offsetof(kiln_attribute, kind) == 0);
static_assert(offsetof(kiln_attribute, reserved) == 4);
static_assert(offsetof(kiln_attribute, value) == 8);

static_assert(sizeof(kiln_call) == 56);
static_assert(offsetof(kiln_call, struct_size) == 0);
static_assert(offsetof(kiln_call, tensor_count) == 4);
static_assert(offsetof(kiln_call, tensors) == 8);
static_assert(offsetof(kiln_call, attribute_count) == 16);
static_assert(offsetof(kiln_call, threads) == 20);
static_assert(offsetof(kiln_call, attributes) == 24);
static_assert(offsetof(kiln_call, workspace) == 32);
static_assert(offsetof(kiln_call, workspace_bytes) == 40);
static_assert(offsetof(kiln_call, stream) == 48);

static_assert(sizeof(kiln_op) == 48);
static_assert(offsetof(kiln_op, struct_size) == 0);
static_assert(offsetof(kiln_op, reserved) == 4);
static_assert(offsetof(kiln_op, name) == 8);
static_assert(offsetof(kiln_op, schema) == 16);
static_assert(offsetof(kiln_op, workspace_bytes) == 24);
static_assert(offsetof(kiln_op, run) == 32);
static_assert(offsetof(kiln_op, signature) == 40);
static_assert(KILN_OP_FIRST_BYTES == 40);

static_assert(sizeof(kiln_package) == 56);
static_assert(offsetof(kiln_package, struct_size) == 0);
static_assert(offsetof(kiln_package, abi_major) == 4);
static_assert(offsetof(kiln_package, abi_minor) == 6);
static_assert(offsetof(kiln_package, name) == 8);
static_assert(offsetof(kiln_package, build_id) == 16);
static_assert(offsetof(kiln_package, version) == 24);
static_assert(offsetof(kiln_package, op_count) == 28);
static_assert(offsetof(kiln_package, ops) == 32);
static_assert(offsetof(kiln_package, op_stride) == 40);
static_assert(offsetof(kiln_package, device_type) == 44);
static_assert(offsetof(kiln_package, prepare) == 48);

extern "C" const unsigned long kiln_layout_as_c[];
extern "C" const unsigned long kiln_layout_as_c_count;

TEST_CASE("abi: a C program sees the same layout") {
  const unsigned long here[] = {sizeof(kiln_error),
                                sizeof(kiln_attribute),
                                sizeof(kiln_call),
                                sizeof(kiln_op),
                                sizeof(kiln_package),
                                offsetof(kiln_error, text),
                                offsetof(kiln_attribute, value),
                                offsetof(kiln_call, stream),
                                offsetof(kiln_op, run),
                                offsetof(kiln_package, prepare)};
  REQUIRE(kiln_layout_as_c_count == sizeof(here) / sizeof(here[0]));
  for (std::size_t i = 0; i < kiln_layout_as_c_count; ++i) CHECK(here[i] == kiln_layout_as_c[i]);
}

TEST_CASE("abi: the entry point's name is fixed") {
  CHECK(std::strcmp(KILN_PACKAGE_SYMBOL, "kiln_package_v1") == 0);
}
