/* SPDX-License-Identifier: Apache-2.0
 *
 * A function of tvm-ffi's calling convention that needs nothing of tvm-ffi, as compilers write
 * them. The macros are the faults that a library may have. */
#include <stdint.h>

#if defined(FAULT_GLIBC)
#include <pthread.h>
void* started(void* x) {
  return x;
}
int fault(void) {
  pthread_t thread;
  return pthread_create(&thread, 0, started, 0);
}
#elif defined(FAULT_SYMBOL)
extern int elsewhere(void);
int fault(void) {
  return elsewhere();
}
#elif defined(FAULT_TEXT)
extern char** environ;
__asm__(".text\n.quad environ\n");
#endif

typedef struct {
  int32_t type_index;
  uint32_t zero;
  union {
    int64_t as_int;
    double as_float;
    const void* pointer;
  } value;
} any;

typedef struct {
  float* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} tensor;

#ifndef FUNCTION
#define FUNCTION __tvm_ffi_twice
#endif

int FUNCTION(void* self, const any* arguments, int32_t count, any* result) {
  const tensor* x = arguments[0].value.pointer;
  const tensor* y = arguments[1].value.pointer;
  (void)self;
  if (count != 2 || arguments[0].type_index != 7 || x->ndim != 1 || x->bits != 32) return -1;
  for (int64_t i = 0; i < x->shape[0]; ++i) y->data[i] = 2 * x->data[i];
  result->type_index = 1;
  result->value.as_int = 0;
  return x->shape[0] == 13 ? -1 : 0; /* an error without a word */
}
