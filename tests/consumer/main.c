/* SPDX-License-Identifier: Apache-2.0
 *
 * c_consumer LIBRARY: calls a geglu-mlp CPU library from C through the ABI alone, without the
 * loader: finds the op "geglu" in the table, computes out = gelu(gate) * up for one row, checks the
 * values, and checks that a wrong shape is refused with the schema's words.
 */
#include <dlfcn.h>
#include <kiln/abi.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { kColumns = 5 };

static const kiln_op* find_op(const kiln_package* package, const char* name) {
  for (uint32_t i = 0; i < package->op_count; ++i) {
    const kiln_op* op = (const kiln_op*)((const char*)package->ops + i * package->op_stride);
    if (strcmp(op->name, name) == 0) return op;
  }
  return NULL;
}

static DLTensor row(float* data, int64_t* shape) {
  DLTensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = 2;
  tensor.dtype.code = kDLFloat;
  tensor.dtype.bits = 32;
  tensor.dtype.lanes = 1;
  tensor.shape = shape;
  return tensor;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  kiln_package_fn entry;
  *(void**)&entry = dlsym(library, KILN_PACKAGE_SYMBOL);
  const kiln_package* package = entry();
  if (package->abi_major != KILN_ABI_MAJOR) return 1;
  const kiln_op* op = find_op(package, "geglu");
  if (op == NULL) return 1;

  float gate[kColumns] = {-3, -0.5F, 0, 0.5F, 3};
  float up[kColumns] = {1, 2, 3, 4, 5};
  float out[kColumns];
  memset(out, 0xff, sizeof out); /* NaN */
  int64_t shape[2] = {1, kColumns};
  int64_t narrow[2] = {1, kColumns - 1};
  DLTensor tensors[3] = {row(gate, shape), row(up, shape), row(out, shape)};
  const DLTensor* arguments[3] = {&tensors[0], &tensors[1], &tensors[2]};
  kiln_attribute exact;
  memset(&exact, 0, sizeof exact);
  exact.kind = KILN_ATTRIBUTE_STRING;
  exact.value.as_string = "none";
  kiln_call call;
  memset(&call, 0, sizeof call);
  call.struct_size = sizeof call;
  call.tensor_count = 3;
  call.tensors = arguments;
  call.attribute_count = 1;
  call.attributes = &exact;

  kiln_error error;
  if (op->run(&call, &error) != KILN_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  for (int i = 0; i < kColumns; ++i) {
    const double z = gate[i];
    const double expected = 0.5 * z * (1 + erf(z / sqrt(2.0))) * up[i];
    if (!(fabs(out[i] - expected) <= 1e-6 * (1 + fabs(expected)))) {
      fprintf(stderr, "column %d is %g, expected %g\n", i, out[i], expected);
      return 1;
    }
  }

  tensors[1].shape = narrow;
  if (op->run(&call, &error) != KILN_INVALID_ARGUMENT) return 1;
  puts(error.text);
  return strstr(error.text, "up has shape [1, 4]") != NULL ? 0 : 1;
}
