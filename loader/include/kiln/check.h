/* SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI between a version's numeric check (one shared library, check/<arch>.so of its dev
 * layer) and whoever runs it: `kiln test` and `kiln diff`. kiln/testing.hpp writes one side of it:
 * a check in C++ is a main() that calls run_check, and `kiln build` makes the library of it.
 *
 * The check exports one function, kiln_check_v1. It calls the ops of a package that the host has
 * loaded and prepared, on memory that the host gives, compares what comes out with double precision
 * and reports each comparison. It runs in a process of its own: it may fail in any way.
 *
 * Threads: everything is called on the thread that called kiln_check_v1.
 */
#ifndef KILN_CHECK_H_
#define KILN_CHECK_H_

#include "kiln/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One comparison, or one refusal. Read during the call of report only. */
typedef struct kiln_check_case {
  uint32_t struct_size;
  int32_t passed;         /* 1 or 0 */
  const char* name;       /* of what: "y float32"; the same for many cases */
  const char* text;       /* why it failed; "" where it passed */
  double error;           /* the largest, as the check counts it */
  double bound;           /* the largest that is allowed */
  const void* found;      /* what the package wrote: elements without gaps; NULL of a refusal */
  const double* expected; /* what it should be, as many; NULL of a refusal */
  size_t count;           /* of elements */
  DLDataType dtype;       /* of found */
} kiln_check_case;

/* What a check is given. Appended fields lie behind struct_size. */
typedef struct kiln_check_host {
  uint32_t struct_size;
  int32_t full;                /* 1: all cases; 0: those that are done in less than a minute */
  const kiln_package* package; /* loaded, and prepared on the device */
  const char* variant;         /* its id */
  DLDevice device;
  int32_t wants_values; /* 1: cases have found and expected; 0: they need not */
  int32_t reserved;
  void* context; /* passed to the functions below */
  /* 256-byte aligned memory on the device; NULL: there is none. */
  void* (*allocate)(void* context, size_t bytes);
  void (*release)(void* context, void* memory);
  /* To the device's memory or from it; waits for all work. 0 is success. */
  int32_t (*copy)(void* context, void* to, const void* from, size_t bytes, int32_t to_device);
  void (*report)(void* context, const kiln_check_case* one);
} kiln_check_host;

/* The check's one required export. KILN_OK: it came to its end, whatever the cases said; else a
 * kiln_status, with a text. */
typedef int32_t (*kiln_check_fn)(const kiln_check_host* host, kiln_error* error);
#define KILN_CHECK_SYMBOL "kiln_check_v1"

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KILN_CHECK_H_ */
