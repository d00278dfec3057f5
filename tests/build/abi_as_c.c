/* SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI's header as a C11 program includes it, and the layout that it sees. */
#include "kiln/abi.h"

const unsigned long kiln_layout_as_c[] = {sizeof(kiln_error),
                                          sizeof(kiln_attribute),
                                          sizeof(kiln_call),
                                          sizeof(kiln_op),
                                          sizeof(kiln_package),
                                          offsetof(kiln_error, text),
                                          offsetof(kiln_attribute, value),
                                          offsetof(kiln_call, stream),
                                          offsetof(kiln_op, run),
                                          offsetof(kiln_package, prepare)};
const unsigned long kiln_layout_as_c_count = sizeof(kiln_layout_as_c) / sizeof(kiln_layout_as_c[0]);

/* A table made in C: the types are complete, and the function types fit. */
static int32_t no_workspace(const kiln_call* call, size_t* bytes, kiln_error* error) {
  (void)call;
  (void)error;
  *bytes = 0;
  return KILN_OK;
}
static int32_t no_run(const kiln_call* call, kiln_error* error) {
  (void)call;
  (void)error;
  return KILN_OK;
}
static int32_t no_prepare(DLDevice device, kiln_error* error) {
  (void)device;
  (void)error;
  return KILN_OK;
}
static const kiln_op op = {sizeof(kiln_op), 0, "nothing", "{}", no_workspace, no_run, 0};
static const kiln_package package = {
    sizeof(kiln_package), KILN_ABI_MAJOR, KILN_ABI_MINOR, "c", "0", 1, 1, &op,
    sizeof(kiln_op),      kDLCPU,         no_prepare};
const kiln_package* kiln_package_of_c(void);
const kiln_package* kiln_package_of_c(void) {
  return &package;
}
