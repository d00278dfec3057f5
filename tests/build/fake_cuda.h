/* SPDX-License-Identifier: Apache-2.0
 *
 * Fake_cuda: what the fake driver records and what a test may set. Not thread-safe in its records;
 * the tests that use several threads look at totals only. */
#ifndef KILN_TESTS_FAKE_CUDA_H_
#define KILN_TESTS_FAKE_CUDA_H_

#ifdef __cplusplus
extern "C" {
#endif

enum fake_call {
  FAKE_INIT,
  FAKE_DEVICE_GET,
  FAKE_DEVICE_GET_ATTRIBUTE,
  FAKE_PRIMARY_RETAIN,
  FAKE_GET_CURRENT,
  FAKE_CONTEXT_GET_DEVICE,
  FAKE_PUSH,
  FAKE_POP,
  FAKE_MODULE_LOAD,
  FAKE_MODULE_UNLOAD,
  FAKE_GET_FUNCTION,
  FAKE_FUNCTION_SET_ATTRIBUTE,
  FAKE_LAUNCH,
  FAKE_GET_ID,
  FAKE_FUNCTION_LOAD,
  FAKE_LAUNCH_EX,
  FAKE_ENCODE,
  FAKE_CALLS
};

struct fake_launch {
  void* function;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void* stream;
  void** arguments;
  void** extra;
  void* context; /* current at the launch */
};

/* CUlaunchConfig as cuda.h has it. */
struct fake_attribute {
  int id;
  char padding[4];
  unsigned value[16];
};
struct fake_config {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void* stream;
  const struct fake_attribute* attributes;
  unsigned attribute_count;
};

struct fake_encode {
  void* map;
  int type, interleave, swizzle, promotion, fill;
  unsigned rank;
  void* address;
  unsigned long long extents[2], stride;
  unsigned box[2], steps[2];
};

struct fake_cuda {
  int calls[FAKE_CALLS];
  enum fake_call fail_call; /* returns fail_result, if that is not 0 */
  int fail_result;
  char bad_image[32]; /* text of an image that does not load */
  int initialized;
  char contexts[4]; /* their addresses are the handles */
  unsigned long long id_of_context[4];
  void* stack[16];
  int depth;
  void* loaded_in; /* context of the last module load */
  int last_attribute, last_value;
  struct fake_launch launch;
  unsigned argument_bytes; /* of a launch's first argument to keep: it is gone afterwards */
  unsigned char argument[256];
  int version;              /* what cuDriverGetVersion writes, at the first use */
  unsigned attribute_count; /* of the last cuLaunchKernelEx */
  struct fake_attribute attributes[4];
  struct fake_encode encode;
  int value_count; /* of a launch's arguments to keep, of which each has 8 bytes */
  unsigned long long values[16];
};

#ifdef __cplusplus
}
#endif
#endif /* KILN_TESTS_FAKE_CUDA_H_ */
