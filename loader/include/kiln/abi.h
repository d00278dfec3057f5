/* SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI between a kernel package (one shared library) and whoever calls it: the Kiln loader, a
 * C program, or another language. C11; the only dependency is dlpack.h.
 *
 * A package exports one function, kiln_package_v1, that returns a static table. The table starts
 * with its own size and the ABI version it was built with, so that a caller can refuse it before
 * reading on. Released fields never move: new ones are appended and KILN_ABI_MINOR is raised.
 *
 * What a package promises: it never allocates device memory, never synchronises, never prints,
 * never throws and keeps no error state; the caller's CUDA context and device are as before after
 * each call. Every function may be called from several threads at once.
 */
#ifndef KILN_ABI_H_
#define KILN_ABI_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_ABI_MAJOR 1
#define KILN_ABI_MINOR 1

/* DLPack's codes of the element types that dlpack.h has no names for before its version 1.1. Each
 * element has 8 bits. */
#define KILN_DL_BOOL 6
#define KILN_DL_FLOAT8_E4M3FN 10
#define KILN_DL_FLOAT8_E5M2 12

/* What every function of a package returns. */
typedef enum kiln_status {
  KILN_OK = 0,
  KILN_INVALID_ARGUMENT =
      1,                /* a tensor, an attribute or the workspace does not fit the op's schema */
  KILN_UNSUPPORTED = 2, /* the arguments are valid, but this build has no kernel for them */
  KILN_DEVICE_ERROR = 3 /* a driver call failed; the text names the call and its error */
} kiln_status;

/* Filled by a failing call, untouched by a succeeding one. Owned by the caller; always
 * NUL-terminated. */
typedef struct kiln_error {
  int32_t status; /* kiln_status */
  char text[508]; /* "geglu-mlp@1 forward: up has shape [8192, 767]; expected [H, D] with D = 768
                     from x" */
} kiln_error;

typedef enum kiln_attribute_kind {
  KILN_ATTRIBUTE_DEFAULT = 0, /* take the schema's default */
  KILN_ATTRIBUTE_INT = 1,
  KILN_ATTRIBUTE_FLOAT = 2,
  KILN_ATTRIBUTE_STRING = 3
} kiln_attribute_kind;

typedef struct kiln_attribute {
  int32_t kind; /* kiln_attribute_kind */
  int32_t reserved;
  union {
    int64_t as_int;
    double as_float;
    const char* as_string; /* NUL-terminated, owned by the caller, read during the call only */
  } value;
} kiln_attribute;

/* One call of one op. Everything it points to is the caller's and is read during the call only; the
 * memory behind the tensors and the workspace must live until the stream has passed the call. */
typedef struct kiln_call {
  uint32_t struct_size; /* sizeof(kiln_call) of the caller */
  uint32_t tensor_count;
  const DLTensor* const* tensors; /* in the schema's order; NULL for an optional tensor left out */
  uint32_t attribute_count; /* may be fewer than the schema has: the rest take their defaults */
  uint32_t threads; /* the most threads that a CPU package may compute with; 0: no bound. A package
                       of minor 0 does not look at it */
  const kiln_attribute* attributes; /* in the schema's order */
  void* workspace;        /* device memory (host memory for a CPU package), 256-byte aligned */
  size_t workspace_bytes; /* at least what workspace_bytes() said for the same arguments */
  void* stream;           /* CUstream or cudaStream_t; NULL is the legacy default stream */
} kiln_call;

typedef struct kiln_op {
  uint32_t struct_size;
  uint32_t reserved;
  const char* name;   /* "forward" */
  const char* schema; /* this op's entry of package.json, as JSON text */

  /* Host only, no device work. Data pointers, workspace and stream of the call are not looked at.
   */
  int32_t (*workspace_bytes)(const kiln_call* call, size_t* bytes, kiln_error* error);

  /* Checks the call against the schema, then enqueues on the stream (a CPU package has finished
   * when this returns). Outputs are undefined after an error. Capturable once prepare() has
   * succeeded. */
  int32_t (*run)(const kiln_call* call, kiln_error* error);

  /* Since minor 1: FNV-1a of the op's signature, its schema in one spelling without the doc, so
   * that who was compiled for an op compares one integer. 0: not stated. kiln/op.hpp has both. */
  uint64_t signature;
} kiln_op;

typedef struct kiln_package {
  uint32_t struct_size;
  uint16_t abi_major;
  uint16_t abi_minor;
  const char* name; /* "geglu-mlp" */
  const char*
      build_id;    /* hex digest of everything the build read: sources, schema, compilers, flags */
  int32_t version; /* the published version, 1 and up */
  uint32_t op_count;
  const kiln_op* ops;
  uint32_t op_stride;  /* bytes from one op to the next: sizeof(kiln_op) of the package */
  int32_t device_type; /* DLDeviceType the ops compute on: kDLCPU or kDLCUDA */

  /* Loads this package's device code into the context that calls on `device` will use: the current
   * context if it belongs to that device, else the device's primary context. Call it outside of
   * stream capture, before the first run() there. Cheap when already done. */
  int32_t (*prepare)(DLDevice device, kiln_error* error);
} kiln_package;

/* The bytes that the first release's tables and calls have, whatever is appended later. Who reads
 * one asks for these; a field beyond them exists where struct_size (op_stride) reaches over it. */
#define KILN_CALL_FIRST_BYTES (offsetof(kiln_call, stream) + sizeof(void*))
#define KILN_OP_FIRST_BYTES (offsetof(kiln_op, run) + sizeof(void (*)(void)))
#define KILN_PACKAGE_FIRST_BYTES (offsetof(kiln_package, prepare) + sizeof(void (*)(void)))

/* The package's one required export. */
typedef const kiln_package* (*kiln_package_fn)(void);
#define KILN_PACKAGE_SYMBOL "kiln_package_v1"

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KILN_ABI_H_ */
