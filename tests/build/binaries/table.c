/* SPDX-License-Identifier: Apache-2.0
 *
 * A library with Kiln's C ABI, written by hand: nothing of it is hidden. */
#include <kiln/abi.h>

#ifndef NAME
#define NAME "twice"
#endif
#ifndef OP
#define OP "twice"
#endif
#ifndef EXTENT
#define EXTENT "N"
#endif

int32_t workspace_bytes(const kiln_call* call, size_t* bytes, kiln_error* error) {
  (void)call;
  (void)error;
  *bytes = 0;
  return KILN_OK;
}

int32_t run(const kiln_call* call, kiln_error* error) {
  const float* x = call->tensors[0]->data;
  float* y = call->tensors[1]->data;
  (void)error;
  for (int64_t i = 0; i < call->tensors[0]->shape[0]; ++i) y[i] = 2 * x[i];
  return KILN_OK;
}

int32_t prepare(DLDevice device, kiln_error* error) {
  (void)device;
  (void)error;
  return KILN_OK;
}

#define TENSOR(name, more) \
  "{\"name\":\"" name "\",\"dtype\":[\"float32\"],\"shape\":[\"" EXTENT "\"]" more "}"
const kiln_op ops[] = {{sizeof(kiln_op), 0, OP,
                        "{\"name\":\"" OP "\",\"doc\":\"y = 2 x\",\"tensors\":[" TENSOR(
                            "x", "") "," TENSOR("y", ",\"output\":true") "]}",
                        workspace_bytes, run, 0}};
#ifdef FAULT_CONSTANT
static kiln_package package; /* made when it is asked for */
const kiln_package* kiln_package_v1(void) {
  package.struct_size = sizeof(kiln_package);
  package.abi_major = KILN_ABI_MAJOR;
  package.name = NAME;
  package.ops = ops;
  return &package;
}
#else
const kiln_package package = {
    sizeof(kiln_package), KILN_ABI_MAJOR, KILN_ABI_MINOR, NAME, "by-hand-7", 1, 1, ops,
    sizeof(kiln_op),      kDLCPU,         prepare};
const kiln_package* kiln_package_v1(void) {
  return &package;
}
#endif
