/* SPDX-License-Identifier: Apache-2.0
 *
 * libkiln_torch.so, for kiln/operators.py alone: operators of PyTorch whose kernel is an op of a
 * package, called by the dispatcher without Python and without its lock. The structs are read
 * during the call that takes them only.
 */
#ifndef KILN_TORCH_OPERATORS_H_
#define KILN_TORCH_OPERATORS_H_

#include "kiln/kiln.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_TORCH_DIMENSIONS 8 /* the most that a result has */

/* Where a tensor of the op comes from. */
typedef struct kiln_torch_operand {
  int32_t argument; /* of the operator; -1: none */
  int32_t result; /* or (a part of) one of its results; -1: none, and the op is called without it */
  int32_t part;   /* a result may hold several tensors of one shape, one behind the other */
  int32_t wanted; /* its place in the operator's list of truth values; -1: it is always computed */
} kiln_torch_operand;

/* A tensor that the operator returns, made by PyTorch's allocator. */
typedef struct kiln_torch_result {
  int32_t like; /* the argument whose dtype and device it has */
  int32_t parts;
  int32_t rank;
  int32_t argument[KILN_TORCH_DIMENSIONS]; /* each extent is that of an argument's axis; */
  int32_t axis[KILN_TORCH_DIMENSIONS];     /* where the argument is -1, this number */
} kiln_torch_result;

typedef struct kiln_torch_binding {
  const kiln_op* op;
  const kiln_attribute* attributes;
  const kiln_torch_operand* operands; /* one for each tensor of the op */
  const kiln_torch_result* results;
  uint32_t attribute_count;
  uint32_t operand_count;
  uint32_t result_count;
  uint32_t threads; /* as kiln_call has them */
} kiln_torch_binding;

/* The functions of kiln.h, and who binds a key that comes for the first time on a device: 0, or a
 * text for people. */
typedef struct kiln_torch_kiln {
  int32_t (*run)(const kiln_op* op, const kiln_call* call, kiln_error* error);
  int32_t (*workspace_bytes)(const kiln_op* op, const kiln_call* call, size_t* bytes,
                             kiln_error* error);
  int32_t (*bind)(int32_t slot, const char* key, int32_t on_gpu, int32_t device, char* text,
                  size_t room);
} kiln_torch_kiln;

/* NULL; or what the PyTorch of this process lacks, and nothing can be registered. */
KILN_EXPORT const char* kiln_torch_open(const kiln_torch_kiln* kiln);

/* Gives the operator kiln::`name`, which is defined elsewhere, its kernels. `kinds`: of each
 * argument, T for a tensor, ? for one that may be None, b for a list of truth values, s for the
 * key. `listed`: it returns one list of tensors. The operator's slot; -1: there is none left, or
 * PyTorch refused. */
KILN_EXPORT int32_t kiln_torch_register(const char* name, const char* kinds, int32_t listed);

/* What calls with this key compute on this device, as long as the process. */
KILN_EXPORT void kiln_torch_bind(int32_t slot, const char* key, int32_t on_gpu, int32_t device,
                                 const kiln_torch_binding* binding);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KILN_TORCH_OPERATORS_H_ */
