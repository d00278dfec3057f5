/* SPDX-License-Identifier: Apache-2.0
 *
 * A libcuda with the GPUs of FAKE_CUDA_GPUS ("8.0,9.0"), in CUDA's order, once it was initialised.
 * FAKE_CUDA_INIT=803 fails to start with that error, FAKE_CUDA_MUTE=1 does not say what its second
 * GPU is, FAKE_CUDA_STUB=1 is the toolkit's stub. Memory is the host's, and only inside of a
 * context. fake_cuda_state says what is left of it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char* gpus(void) {
  const char* list = getenv("FAKE_CUDA_GPUS");
  return list != NULL ? list : "";
}

#define EXPORT(...) \
  int __VA_ARGS__;  \
  int __VA_ARGS__

enum { kDepth = 8 };
static void* contexts[kDepth]; /* the current one is the last */
static int depth = 0;
static int primaries = 0; /* held */
static int memories = 0;
static int hasty = 0; /* frees that did not wait for the memory's context */
static void* waited_for = NULL;

static void* current(void) {
  return depth > 0 ? contexts[depth - 1] : NULL;
}
static int initialised = 0;

EXPORT(cuInit(unsigned flags)) {
  (void)flags;
  const char* const error = getenv("FAKE_CUDA_STUB") != NULL ? "34" : getenv("FAKE_CUDA_INIT");
  initialised = error == NULL;
  return initialised ? 0 : atoi(error);
}
EXPORT(cuDriverGetVersion(int* version)) {
  if (getenv("FAKE_CUDA_STUB") != NULL) return 34;
  *version = 13000;
  return 0;
}
EXPORT(cuDeviceGetCount(int* number)) {
  if (!initialised) return 3;
  *number = *gpus() == '\0' ? 0 : 1;
  for (const char* at = gpus(); *at != '\0'; ++at) *number += *at == ',';
  return 0;
}
EXPORT(cuDeviceGet(int* device, int ordinal)) {
  int number = 0;
  cuDeviceGetCount(&number);
  *device = ordinal;
  return ordinal < number ? 0 : 101;
}
EXPORT(cuDeviceGetAttribute(int* value, int attribute, int device)) {
  const char* at = gpus();
  int major = 0;
  int minor = 0;
  if (device == 1 && getenv("FAKE_CUDA_MUTE") != NULL) return 999;
  for (int i = 0; i < device; ++i) at = strchr(at, ',') + 1;
  if (sscanf(at, "%d.%d", &major, &minor) != 2) return 1;
  *value = attribute == 75 ? major : minor;
  return attribute == 75 || attribute == 76 ? 0 : 1;
}
EXPORT(cuDeviceGetName(char* text, int size, int device)) {
  snprintf(text, (size_t)size, "cuda%d", device);
  return 0;
}
EXPORT(cuGetErrorName(int error, const char** text)) {
  switch (error) {
    case 2:
      *text = "CUDA_ERROR_OUT_OF_MEMORY";
      return 0;
    case 34:
      *text = "CUDA_ERROR_STUB_LIBRARY";
      return 0;
    case 101:
      *text = "CUDA_ERROR_INVALID_DEVICE";
      return 0;
    case 802:
      *text = "CUDA_ERROR_SYSTEM_NOT_READY";
      return 0;
    case 803:
      *text = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
      return 0;
    case 999:
      *text = "CUDA_ERROR_UNKNOWN";
      return 0;
    default:
      return 1;
  }
}
EXPORT(cuCtxGetCurrent(void** context)) {
  *context = current();
  return 0;
}
EXPORT(cuCtxGetDevice(int* device)) {
  *device = 0;
  return current() != NULL ? 0 : 201;
}
EXPORT(cuCtxPushCurrent_v2(void* context)) {
  if (depth == kDepth) return 1;
  contexts[depth++] = context;
  return 0;
}
EXPORT(cuCtxPopCurrent_v2(void** context)) {
  if (depth == 0) return 201;
  *context = contexts[--depth];
  return 0;
}
EXPORT(cuDevicePrimaryCtxRetain(void** context, int device)) {
  (void)device;
  static int primary;
  ++primaries;
  *context = &primary;
  return 0;
}
EXPORT(cuDevicePrimaryCtxRelease_v2(int device)) {
  (void)device;
  --primaries;
  return 0;
}
EXPORT(cuCtxSynchronize(void)) {
  waited_for = current();
  return current() != NULL ? 0 : 201;
}

/* The context of a piece of memory stands before it. */
enum { kHeader = 16 };

EXPORT(cuMemAlloc_v2(unsigned long long* memory, size_t bytes)) {
  if (current() == NULL) return 201;
  const char* const most = getenv("FAKE_CUDA_MEMORY");
  if (bytes > (most != NULL ? (size_t)atoll(most) : 1u << 30)) return 2;
  char* const block = malloc(kHeader + bytes);
  *(void**)block = current();
  *memory = (unsigned long long)(size_t)(block + kHeader);
  ++memories;
  waited_for = NULL;
  return 0;
}
EXPORT(cuMemFree_v2(unsigned long long memory)) {
  if (current() == NULL) return 201;
  char* const block = (char*)(size_t)memory - kHeader;
  hasty += waited_for != *(void**)block;
  --memories;
  free(block);
  return 0;
}

const char* fake_cuda_state(void);
const char* fake_cuda_state(void) {
  static char text[80];
  snprintf(text, sizeof text, "contexts:%d primaries:%d memories:%d hasty:%d", depth, primaries,
           memories, hasty);
  return text;
}
