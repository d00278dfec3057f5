/* SPDX-License-Identifier: Apache-2.0
 *
 * Fake_cuda: a libcuda.so.1 without a GPU, for the tests of the launcher. Two devices; it counts
 * what it is asked, keeps a stack of contexts, and fails on request. With KILN_FAKE_OLD it is a
 * driver that lacks a function that packages need. */
#include "fake_cuda.h"

#include <string.h>

struct fake_cuda fake_cuda = {.id_of_context = {1, 2, 3, 4}, .version = 12090};

static int outcome(enum fake_call call) {
  __atomic_fetch_add(&fake_cuda.calls[call], 1, __ATOMIC_RELAXED); /* threads may come at once */
  if (fake_cuda.fail_call == call && fake_cuda.fail_result != 0) return fake_cuda.fail_result;
  return 0;
}

static int context_number(void* context) {
  return (int)((char*)context - fake_cuda.contexts);
}

int cuInit(unsigned flags) {
  const int result = outcome(FAKE_INIT) + (int)flags;
  fake_cuda.initialized = result == 0;
  return result;
}

int cuGetErrorName(int result, const char** name) {
  *name = result == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
                          : 0;
  return *name == 0;
}

int cuDeviceGet(int* device, int ordinal) {
  const int result = outcome(FAKE_DEVICE_GET);
  if (!fake_cuda.initialized) return 3;
  if (ordinal > 1) return 101;
  *device = ordinal;
  return result;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75   ? 9
           : attribute == 76 ? device
           : attribute == 16 ? 132
           : attribute == 97 ? 232448
                             : -1;
  return outcome(FAKE_DEVICE_GET_ATTRIBUTE);
}

/* Context 0 and 1 are the primary ones of device 0 and 1; 2 and 3 are others of device 0. */
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &fake_cuda.contexts[device];
  return outcome(FAKE_PRIMARY_RETAIN);
}

int cuCtxGetCurrent(void** context) {
  *context = fake_cuda.depth > 0 ? fake_cuda.stack[fake_cuda.depth - 1] : 0;
  return outcome(FAKE_GET_CURRENT);
}

int cuCtxGetDevice(int* device) {
  *device = context_number(fake_cuda.stack[fake_cuda.depth - 1]) == 1;
  return outcome(FAKE_CONTEXT_GET_DEVICE);
}

int cuCtxPushCurrent_v2(void* context) {
  const int result = outcome(FAKE_PUSH);
  if (result == 0) fake_cuda.stack[fake_cuda.depth++] = context;
  return result;
}

int cuCtxPopCurrent_v2(void** context) {
  *context = fake_cuda.stack[--fake_cuda.depth];
  return outcome(FAKE_POP);
}

int cuModuleLoadData(void** module, const void* image) {
  *module = (void*)image;
  fake_cuda.loaded_in = fake_cuda.stack[fake_cuda.depth - 1];
  if (strcmp(image, fake_cuda.bad_image) == 0 && fake_cuda.bad_image[0] != 0) return 209;
  return outcome(FAKE_MODULE_LOAD);
}

int cuModuleUnload(void* module) {
  (void)module;
  return outcome(FAKE_MODULE_UNLOAD);
}

/* A function's handle is its name. */
int cuModuleGetFunction(void** function, void* module, const char* name) {
  (void)module;
  *function = (void*)name;
  return outcome(FAKE_GET_FUNCTION);
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  (void)function;
  fake_cuda.last_attribute = attribute;
  fake_cuda.last_value = value;
  return outcome(FAKE_FUNCTION_SET_ATTRIBUTE);
}

#ifndef KILN_FAKE_OLD
int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void* stream, void** arguments, void** extra) {
  const struct fake_launch launch = {function,
                                     {grid_x, grid_y, grid_z},
                                     {block_x, block_y, block_z},
                                     shared_bytes,
                                     stream,
                                     arguments,
                                     extra,
                                     fake_cuda.stack[fake_cuda.depth - 1]};
  fake_cuda.launch = launch;
  memcpy(fake_cuda.argument, fake_cuda.argument_bytes != 0 ? arguments[0] : "",
         fake_cuda.argument_bytes);
  for (int i = 0; i < fake_cuda.value_count; ++i) {
    memcpy(&fake_cuda.values[i], arguments[i], sizeof(fake_cuda.values[i]));
  }
  return outcome(FAKE_LAUNCH);
}

int cuLaunchKernelEx(const struct fake_config* config, void* function, void** arguments,
                     void** extra) {
  const struct fake_launch launch = {function,
                                     {config->grid[0], config->grid[1], config->grid[2]},
                                     {config->block[0], config->block[1], config->block[2]},
                                     config->shared_bytes,
                                     config->stream,
                                     arguments,
                                     extra,
                                     fake_cuda.stack[fake_cuda.depth - 1]};
  fake_cuda.launch = launch;
  fake_cuda.attribute_count = config->attribute_count;
  for (unsigned i = 0; i < config->attribute_count && i < 4; ++i) {
    fake_cuda.attributes[i] = config->attributes[i];
  }
  return outcome(FAKE_LAUNCH_EX);
}

int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address,
                           const unsigned long long* extents, const unsigned long long* strides,
                           const unsigned* box, const unsigned* steps, int interleave, int swizzle,
                           int promotion, int fill) {
  const struct fake_encode encode = {map,
                                     type,
                                     interleave,
                                     swizzle,
                                     promotion,
                                     fill,
                                     rank,
                                     address,
                                     {extents[0], extents[1]},
                                     strides[0],
                                     {box[0], box[1]},
                                     {steps[0], steps[1]}};
  fake_cuda.encode = encode;
  return outcome(FAKE_ENCODE);
}
#endif

int cuDriverGetVersion(int* version) {
  *version = fake_cuda.version;
  return 0;
}

int cuCtxGetId(void* context, unsigned long long* id) {
  *id = fake_cuda.id_of_context[context_number(context)];
  return outcome(FAKE_GET_ID);
}

int cuFuncLoad(void* function) {
  (void)function;
  return outcome(FAKE_FUNCTION_LOAD);
}
