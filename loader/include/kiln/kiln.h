/* SPDX-License-Identifier: Apache-2.0
 *
 * Kiln for C and every language that can call C. Link libkiln.so (pkg-config kiln, or kiln::c in
 * CMake). One call finds the variant for this machine, installs, verifies and loads it; its ops are
 * then called with DLPack tensors. C++ programs use kiln/kiln.hpp.
 *
 *   kiln_request request = {.struct_size = sizeof request, .version = 1};
 *   kiln_kernel* kernel = NULL;
 *   kiln_error error;
 *   const kiln_op* forward = NULL;
 *   if (kiln_get_kernel("geglu-mlp", &request, &kernel, &error) != KILN_SUCCESS ||
 *       kiln_find_op(kernel, "forward", &forward, &error) != KILN_SUCCESS) {
 *     fprintf(stderr, "%s\n", error.text);
 *   }
 *
 * Threads: every function may be called from several threads at once, on one object too; only a
 * release must be the last use of its object. After a fork: as in kiln/kernel.hpp.
 *
 * Ownership: what a function takes is read during the call only and stays the caller's. What it
 * gives is const and lives as long as the object it came from, but for the three kinds of object
 * that have a release function: kiln_kernel, kiln_cancel and the texts of kiln_resolve and
 * kiln_dev_files. Release
 * takes NULL.
 *
 * Errors: a function that can fail returns a kiln_code and fills the caller's kiln_error, whose
 * `status` is that same code, here always a kiln_code; `error` may be NULL. Outputs are untouched
 * after a failure, unless said. A text that is longer than the struct holds loses its middle,
 * whole lines of it if it has lines, marked by " [...] ": its beginning says what failed, its end
 * what to do. kiln_failure_text has all of it.
 *
 * Structs start with their own size, as the caller was compiled. Fields are only ever appended, and
 * zero is every field's default. Text is UTF-8 and NUL-terminated.
 */
#ifndef KILN_KILN_H_
#define KILN_KILN_H_

#include <stddef.h>
#include <stdint.h>

#include "kiln/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_EXPORT __attribute__((visibility("default")))

/* Released numbers never change; they are the exit codes of the command `kiln`. */
typedef enum kiln_code {
  KILN_SUCCESS = 0,
  KILN_E_INTERNAL = 1,      /* a bug in Kiln */
  KILN_E_USAGE = 2,         /* the request is not valid */
  KILN_E_NO_VARIANT = 3,    /* the version exists, nothing in it fits this machine */
  KILN_E_NOT_FOUND = 4,     /* no such registry, package, version or op */
  KILN_E_NETWORK = 5,       /* the registry did not answer, or not in full */
  KILN_E_INTEGRITY = 6,     /* bytes are not the ones that were promised */
  KILN_E_TRUST = 7,         /* a signature, version or date of trust metadata does not hold */
  KILN_E_LOCK = 8,          /* the lock file does not hold, or forbids, what was asked for */
  KILN_E_CACHE = 9,         /* the cache folder cannot be used */
  KILN_E_OFFLINE = 10,      /* not in the cache, and the network must not be asked */
  KILN_E_UPGRADE = 11,      /* the package needs a newer Kiln */
  KILN_E_LOAD = 12,         /* the library does not load */
  KILN_E_INVALID_CALL = 13, /* a tensor, attribute or workspace does not fit the op's schema */
  KILN_E_DEVICE = 14,       /* a CUDA driver call failed */
  KILN_E_CANCELLED = 130    /* kiln_cancel_now was called */
} kiln_code;

/* The version of the library that was found at run time, "0.1.0". */
KILN_EXPORT const char* kiln_version(void);

/* The whole text of the latest failure of a function of this header on the calling thread; ""
 * before the first. Valid until the thread's next failure or end. */
KILN_EXPORT const char* kiln_failure_text(void);

/* ---- Stopping what takes long ---- */

/* Stops every call whose request holds it, with KILN_E_CANCELLED: a download or a wait within a
 * fraction of a second, any other step at its next piece or at its end. A load that has begun is
 * not interrupted. Nothing half-done is left. */
typedef struct kiln_cancel kiln_cancel;

KILN_EXPORT kiln_cancel* kiln_new_cancel(void); /* NULL: out of memory */
/* From any thread; not from a signal handler. Cannot be undone. */
KILN_EXPORT void kiln_cancel_now(kiln_cancel* cancel);
/* Calls that hold it go on, and can no longer be stopped. */
KILN_EXPORT void kiln_release_cancel(kiln_cancel* cancel);

/* ---- What to ask for ---- */

/* What an install is doing. `subject` and `note` are valid during the call only. */
typedef struct kiln_event {
  uint32_t struct_size;
  uint32_t reserved;
  const char* stage;   /* "index", "manifest", "config", "layer", "unpack", "retry", "wait",
                          "fallback", "compile", "warning" */
  const char* subject; /* "geglu-mlp@1 cu12.9-sm_90a-x86_64" */
  const char* note;    /* one line for people, or "" while bytes arrive */
  uint64_t done;       /* bytes */
  uint64_t total;      /* bytes; 0: not known */
} kiln_event;

/* Called on a thread of the install, one call at a time, and inside of libraries that nothing may
 * unwind through; must return: longjmp() out of it is undefined, and pthread_exit() in it ends the
 * process by SIGABRT. To stop the install, call kiln_cancel_now. */
typedef void (*kiln_event_fn)(const kiln_event* event, void* user);

typedef enum kiln_device_kind {
  KILN_DEVICE_AUTO = 0, /* GPU 0 where there is one, else the CPU */
  KILN_DEVICE_CPU = 1,
  KILN_DEVICE_CUDA = 2
} kiln_device_kind;

typedef enum kiln_load_mode {
  KILN_LOAD_MEMORY = 0, /* from a sealed copy in memory: the bytes that were hashed are what runs */
  KILN_LOAD_PATH = 1    /* from the file itself, for gdb, perf and nsys; weaker, see kernel.hpp */
} kiln_load_mode;

typedef struct kiln_request {
  uint32_t struct_size;   /* sizeof(kiln_request) of the caller */
  int32_t version;        /* one published integer, which pins the exact build; required */
  int32_t device_kind;    /* kiln_device_kind */
  int32_t device_ordinal; /* of CUDA, after CUDA_VISIBLE_DEVICES */
  const char* registry; /* folder or http(s) URL; NULL: $KILN_REGISTRY, else the built-in default */
  const char* variant;  /* take this variant only; NULL: the best that fits */
  const char* cache;    /* absolute folder; NULL: $KILN_CACHE, else ~/.cache/kiln */
  int32_t no_jit;       /* 1: never a PTX variant, which the driver compiles at load */
  int32_t refresh; /* 1: ask the registry although the cache can answer; replace what is damaged */
  kiln_event_fn on_event;    /* NULL: nobody is told */
  void* user;                /* passed to on_event */
  const kiln_cancel* cancel; /* NULL: cannot be stopped */
  int32_t offline;           /* 1: fetch nothing; what is not in the cache is KILN_E_OFFLINE */
  int32_t load_mode;         /* kiln_load_mode */
  const char*
      lock; /* lock file that the request is held to; version 0 is then its; NULL: $KILN_LOCK */
  const char*
      from; /* mirror, folder or bundle file to fetch from in place of `registry`; NULL: none */
  /* "cpu" or "version:2": tried in this order where nothing fits, or the GPU that was asked for is
   * not there or its driver does not start, and for no other error; ends with NULL. NULL: that
   * error. kiln_kernel_fallback tells whether one was taken. */
  const char* const* fallback;
  /* Variants never taken, by id or by digest of their manifest; ends with NULL. NULL: none. */
  const char* const* deny;
  int32_t all_gpus; /* 1: only a variant that runs on every visible GPU */
  int32_t reserved; /* 0 */
} kiln_request;

/* ---- A loaded kernel ---- */

/* A handle; the loaded library itself stays in the process until it ends, and a second get of the
 * same request finds it without touching disk or network. */
typedef struct kiln_kernel kiln_kernel;

/* Finds, installs, verifies and loads one version of a package for this machine. */
KILN_EXPORT int32_t kiln_get_kernel(const char* name, const kiln_request* request,
                                    kiln_kernel** kernel, kiln_error* error);
KILN_EXPORT void kiln_release_kernel(kiln_kernel* kernel);

/* What kiln_get_kernel would return offline, up to the load: reads the cache alone, asks no
 * network, installs nothing. All that it may write is what it remembers: which signatures held, and
 * the lock file of a cache that lacks it. KILN_SUCCESS: the kernel is there. */
KILN_EXPORT int32_t kiln_has_kernel(const char* name, const kiln_request* request,
                                    kiln_error* error);

/* What kiln_get_kernel does up to the load: finds, installs and verifies, so that a later
 * kiln_get_kernel of this request needs no network. */
KILN_EXPORT int32_t kiln_prefetch(const char* name, const kiln_request* request, kiln_error* error);

KILN_EXPORT const char* kiln_kernel_name(const kiln_kernel* kernel);    /* "geglu-mlp" */
KILN_EXPORT int32_t kiln_kernel_version(const kiln_kernel* kernel);     /* 1 */
KILN_EXPORT const char* kiln_kernel_variant(const kiln_kernel* kernel); /* "cu12.9-sm_90a-x86_64" */
KILN_EXPORT DLDevice kiln_kernel_device(const kiln_kernel* kernel); /* kDLCPU, or kDLCUDA and n */
KILN_EXPORT const char* kiln_kernel_library(const kiln_kernel* kernel); /* the file in the cache */
/* Every variant, and why it was taken or not: a table for people. NULL: out of memory. */
KILN_EXPORT const char* kiln_kernel_explanation(const kiln_kernel* kernel);
/* The same tables of what did not fit before a fallback was taken. "": none was needed. */
KILN_EXPORT const char* kiln_kernel_fallback(const kiln_kernel* kernel);
/* The package's own table, as abi.h describes it: all ops, its build id. */
KILN_EXPORT const kiln_package* kiln_kernel_package(const kiln_kernel* kernel);

/* ---- Its ops ---- */

/* KILN_E_NOT_FOUND lists the ops that there are. The op is valid as long as the process. */
KILN_EXPORT int32_t kiln_find_op(const kiln_kernel* kernel, const char* name, const kiln_op** op,
                                 kiln_error* error);

/* How much scratch memory kiln_run needs for this call. Workspace and stream are not looked at. A
 * data pointer may be NULL, which stands for every address; aligned tensors may need less. */
KILN_EXPORT int32_t kiln_workspace_bytes(const kiln_op* op, const kiln_call* call, size_t* bytes,
                                         kiln_error* error);

/* Checks the call against the op's schema, then enqueues it on the call's stream and returns; a CPU
 * op has finished when this returns. KILN_E_INVALID_CALL or KILN_E_DEVICE; outputs are then
 * undefined. */
KILN_EXPORT int32_t kiln_run(const kiln_op* op, const kiln_call* call, kiln_error* error);

/* ---- The decision without the kernel ---- */

/* Which variant this machine would get, and why not the others: the JSON document of `kiln resolve
 * --json`, schema "kiln.resolve/1". Installs and loads nothing; asks the registry as
 * kiln_get_kernel would. Where nothing fits (KILN_E_NO_VARIANT), or the GPU
 * that was asked for cannot be used (KILN_E_USAGE, KILN_E_DEVICE), the document is given too. */
KILN_EXPORT int32_t kiln_resolve(const char* name, const kiln_request* request, char** json,
                                 kiln_error* error);
KILN_EXPORT void kiln_release_text(char* text);

/* What a version's package brings for those who write programs with it, as `kiln install --dev`
 * fetches, verifies and unpacks it. The JSON document, for kiln_release_text: {"name", "version",
 * "folder", "files": [{"path", "digest"}]}, paths in that folder. The digests are those that the
 * version's documents vouch for. Whoever runs one of these files hashes the bytes that it runs. Of
 * the request, device, variant and fallback are not looked at. */
KILN_EXPORT int32_t kiln_dev_files(const char* name, const kiln_request* request, char** json,
                                   kiln_error* error);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KILN_KILN_H_ */
