/* SPDX-License-Identifier: Apache-2.0
 *
 * capi_user CASE REGISTRY CACHE: a C program that knows Kiln by kiln.h alone. Each case prints the
 * line that failed and exits with 1, or exits with 0. capi_test.cpp publishes what it asks for.
 */
#define _POSIX_C_SOURCE 200809L
#include <kiln/kiln.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(condition)                                                                    \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      fprintf(stderr, "user.c:%d: %s; error.text: %s\n", __LINE__, #condition, error.text); \
      return 1;                                                                             \
    }                                                                                       \
  } while (0)

static kiln_error error; /* of the call that came last */

static kiln_request request_for(char** arguments) {
  kiln_request request;
  memset(&request, 0, sizeof request);
  request.struct_size = sizeof request;
  request.version = 1;
  request.device_kind = KILN_DEVICE_CPU;
  request.registry = arguments[2];
  request.cache = arguments[3];
  return request;
}

static DLTensor matrix(float* data, int64_t* shape, int64_t* strides) {
  DLTensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = 2;
  tensor.dtype.code = kDLFloat;
  tensor.dtype.bits = 32;
  tensor.dtype.lanes = 1;
  tensor.shape = shape;
  tensor.strides = strides;
  return tensor;
}

static int run(char** arguments) {
  const kiln_request request = request_for(arguments);
  kiln_kernel* kernel = NULL;
  CHECK(kiln_has_kernel("sample", &request, &error) == KILN_E_OFFLINE);
  CHECK(error.status == KILN_E_OFFLINE && strstr(error.text, "kiln install sample@1") != NULL);
  CHECK(kiln_prefetch("sample", NULL, &error) == KILN_E_USAGE);
  CHECK(kiln_prefetch("sample", &request, &error) == KILN_SUCCESS);
  CHECK(kiln_has_kernel("sample", &request, &error) == KILN_SUCCESS);
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_SUCCESS);
  CHECK(strcmp(kiln_kernel_name(kernel), "sample") == 0);
  CHECK(kiln_kernel_version(kernel) == 1);
  CHECK(strcmp(kiln_kernel_variant(kernel), "cpu-base") == 0);
  CHECK(kiln_kernel_device(kernel).device_type == kDLCPU);
  CHECK(strncmp(kiln_kernel_library(kernel), arguments[3], strlen(arguments[3])) == 0);
  CHECK(strstr(kiln_kernel_explanation(kernel), "> cpu-base") != NULL);
  CHECK(kiln_kernel_explanation(kernel) == kiln_kernel_explanation(kernel));
  CHECK(strcmp(kiln_kernel_fallback(kernel), "") == 0);
  CHECK(kiln_kernel_package(kernel)->op_count == 2);

  const kiln_op* op = NULL;
  CHECK(kiln_find_op(kernel, "multiply", &op, &error) == KILN_E_NOT_FOUND);
  CHECK(error.status == KILN_E_NOT_FOUND && strstr(error.text, "it has: add, probe") != NULL);
  CHECK(op == NULL);
  CHECK(kiln_find_op(kernel, "add", &op, &error) == KILN_SUCCESS);

  float x[4] = {1, 2, 3, 4};
  float y[4] = {-9, -9, -9, -9};
  int64_t shape[2] = {2, 2};
  int64_t strides[2] = {2, 1};
  const DLTensor tensors[2] = {matrix(x, shape, strides), matrix(y, shape, strides)};
  const DLTensor* pointers[2] = {&tensors[0], &tensors[1]};
  kiln_attribute addend;
  memset(&addend, 0, sizeof addend);
  addend.kind = KILN_ATTRIBUTE_FLOAT;
  addend.value.as_float = 10;
  kiln_call call;
  memset(&call, 0, sizeof call);
  call.struct_size = sizeof call;
  call.tensor_count = 2;
  call.tensors = pointers;
  call.attribute_count = 1;
  call.attributes = &addend;
  CHECK(kiln_workspace_bytes(op, &call, &call.workspace_bytes, &error) == KILN_SUCCESS);
  CHECK(call.workspace_bytes == 64);
  CHECK(kiln_run(op, &call, &error) == KILN_E_INVALID_CALL);
  CHECK(error.status == KILN_E_INVALID_CALL && strstr(error.text, "workspace too small") != NULL);
  call.workspace = aligned_alloc(256, 256);
  CHECK(kiln_run(op, &call, &error) == KILN_SUCCESS);
  CHECK(y[0] == 11 && y[1] == 12 && y[2] == 13 && y[3] == 14);
  CHECK(strstr(error.text, "workspace too small") != NULL); /* a call that succeeds leaves it */

  addend.kind = KILN_ATTRIBUTE_STRING;
  addend.value.as_string = "cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED";
  CHECK(kiln_run(op, &call, &error) == KILN_E_DEVICE);
  CHECK(strstr(error.text, "CUDA_ERROR_LAUNCH_FAILED") != NULL);
  CHECK(kiln_run(op, &call, NULL) == KILN_E_DEVICE);
  addend.value.as_string = "";
  CHECK(kiln_run(op, &call, &error) == KILN_E_DEVICE);
  CHECK(strstr(error.text, "gave no text") != NULL);
  free(call.workspace);

  kiln_kernel* again = NULL;
  CHECK(kiln_get_kernel("sample", &request, &again, &error) == KILN_SUCCESS);
  CHECK(kiln_kernel_package(again) == kiln_kernel_package(kernel));
  kiln_release_kernel(kernel);
  CHECK(kiln_kernel_version(again) == 1); /* handles are independent */
  kiln_release_kernel(again);
  kiln_release_kernel(NULL);
  return 0;
}

static int errors(char** arguments) {
  kiln_request request = request_for(arguments);
  kiln_kernel* kernel = NULL;
  request.version = 7;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_NOT_FOUND);
  CHECK(error.status == KILN_E_NOT_FOUND && strstr(error.text, "published: 1") != NULL);
  CHECK(kernel == NULL);
  CHECK(kiln_get_kernel("sample", &request, &kernel, NULL) == KILN_E_NOT_FOUND);
  request.version = 1;
  CHECK(kiln_get_kernel("../sample", &request, &kernel, &error) == KILN_E_USAGE);
  CHECK(kiln_get_kernel(NULL, &request, &kernel, &error) == KILN_E_USAGE);
  CHECK(kiln_get_kernel("sample", NULL, &kernel, &error) == KILN_E_USAGE);
  CHECK(kiln_get_kernel("sample", &request, NULL, &error) == KILN_E_USAGE);
  CHECK(kiln_find_op(NULL, "add", NULL, &error) == KILN_E_USAGE);
  CHECK(kiln_run(NULL, NULL, &error) == KILN_E_USAGE);
  CHECK(kiln_workspace_bytes(NULL, NULL, NULL, &error) == KILN_E_USAGE);
  request.device_kind = 9;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_USAGE);
  CHECK(strstr(error.text, "device_kind is 9") != NULL);
  request.device_kind = KILN_DEVICE_CPU;
  request.load_mode = 5;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_USAGE);
  CHECK(strstr(error.text, "load_mode is 5") != NULL);
  request.load_mode = KILN_LOAD_PATH;
  request.offline = 1; /* and nothing was installed yet */
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_OFFLINE);
  request.offline = 0;
  request.device_kind = KILN_DEVICE_CUDA;
  request.device_ordinal = -1;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_USAGE);
  request.device_kind = KILN_DEVICE_CPU;
  request.device_ordinal = 0;
  request.lock = "/no/such/kiln.lock";
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) != KILN_SUCCESS);
  CHECK(strstr(error.text, "/no/such/kiln.lock") != NULL);
  request.lock = NULL;
  request.from = "/no/such/mirror";
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_NOT_FOUND);
  CHECK(strstr(error.text, "/no/such/mirror") != NULL);
  request.from = NULL;
  const char* const unknown[] = {"gpu", NULL};
  request.fallback = unknown;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_USAGE);
  CHECK(strstr(error.text, "\"gpu\" is not cpu or version:N") != NULL);
  request.fallback = NULL;
  request.reserved = 1;
  CHECK(kiln_has_kernel("sample", &request, &error) == KILN_E_USAGE);
  request.reserved = 0;
  request.cache = "relative/cache";
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_CACHE);
  return 0;
}

/* Callers of another age: an older struct ends early, a newer one has zeros, or fields we lack. */
static int sizes(char** arguments) {
  struct {
    kiln_request known;
    uint64_t later;
  } newer;
  memset(&newer, 0, sizeof newer);
  newer.known = request_for(arguments);
  newer.known.struct_size = sizeof newer;
  kiln_kernel* kernel = NULL;
  CHECK(kiln_get_kernel("sample", &newer.known, &kernel, &error) == KILN_SUCCESS);
  kiln_release_kernel(kernel);
  newer.later = 1;
  CHECK(kiln_get_kernel("sample", &newer.known, &kernel, &error) == KILN_E_USAGE);
  CHECK(strstr(error.text, "does not have") != NULL);

  /* Behind the end of an older struct is whatever the caller has there. */
  kiln_request older = request_for(arguments);
  older.struct_size = offsetof(kiln_request, no_jit);
  memset((char*)&older + older.struct_size, 0xff, sizeof older - older.struct_size);
  CHECK(kiln_get_kernel("sample", &older, &kernel, &error) == KILN_SUCCESS);
  kiln_release_kernel(kernel);
  older.struct_size = 0;
  CHECK(kiln_get_kernel("sample", &older, &kernel, &error) == KILN_E_USAGE);
  CHECK(strstr(error.text, "struct_size is 0") != NULL);
  return 0;
}

/* The text of a failure that is longer than the struct keeps its beginning and its end. */
static int long_text(char** arguments) {
  kiln_request request = request_for(arguments);
  request.device_kind = KILN_DEVICE_CUDA; /* nothing fits: the error carries a table */
  kiln_kernel* kernel = NULL;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_NO_VARIANT);
  CHECK(strlen(error.text) < sizeof error.text);
  CHECK(strstr(error.text, "resolve sample@1: no variant fits") == error.text);
  CHECK(strstr(error.text, "\n [...] \n") != NULL); /* whole lines are left out */
  CHECK(strstr(error.text, "\nnearest: ") != NULL);
  CHECK(strstr(error.text, "--device cpu") != NULL);
  const char* const whole = kiln_failure_text();
  CHECK(strlen(whole) > sizeof error.text);
  CHECK(strstr(whole, " [...] ") == NULL && strstr(whole, "\nnearest: ") != NULL);

  char* json = NULL;
  CHECK(kiln_resolve("sample", &request, &json, &error) == KILN_E_NO_VARIANT);
  CHECK(strstr(json, "\"chosen\":null") != NULL);
  kiln_release_text(json);
  request.device_kind = KILN_DEVICE_CPU;
  CHECK(kiln_resolve("sample", &request, &json, &error) == KILN_SUCCESS);
  CHECK(strstr(json, "\"chosen\":\"cpu-base\"") != NULL);
  CHECK(strstr(json, "\"schema\":\"kiln.resolve/1\"") != NULL);
  kiln_release_text(json);
  kiln_release_text(NULL);
  CHECK(kiln_resolve("sample", &request, NULL, &error) == KILN_E_USAGE);
  CHECK(kiln_dev_files("sample", &request, NULL, &error) == KILN_E_USAGE);
  CHECK(kiln_dev_files("sample", &request, &json, &error) == KILN_E_NOT_FOUND);
  CHECK(strstr(error.text, "install sample@1 dev: the package has no headers") == error.text);

  char far[800]; /* in one line there are no whole ones to leave out */
  for (size_t i = 0; i < sizeof far; ++i) far[i] = i % 100 == 0 ? '/' : 'x';
  far[sizeof far - 1] = '\0';
  request.registry = far;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) != KILN_SUCCESS);
  CHECK(strlen(error.text) == sizeof error.text - 1);
  CHECK(strstr(error.text, "x [...] x") != NULL);
  CHECK(strstr(kiln_failure_text(), far) != NULL);
  return 0;
}

/* This machine shows two GPUs, of which the package has code for neither. */
static int choice(char** arguments) {
  const char* const fallback[] = {"version:9", "cpu", NULL};
  const char* const deny[] = {"cpu-base", NULL};
  kiln_request request = request_for(arguments);
  request.device_kind = KILN_DEVICE_AUTO;
  kiln_kernel* kernel = NULL;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_NO_VARIANT);
  request.all_gpus = 1;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_NO_VARIANT);
  CHECK(strstr(error.text, "take a variant for each GPU") != NULL);
  request.all_gpus = 0;
  request.fallback = fallback + 1;
  request.deny = deny;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_NO_VARIANT);
  request.deny = NULL;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_SUCCESS);
  CHECK(kiln_kernel_device(kernel).device_type == kDLCPU);
  CHECK(strstr(kiln_kernel_fallback(kernel), "for cuda:0") != NULL);
  CHECK(strstr(kiln_kernel_explanation(kernel), "> cpu-base") != NULL);
  kiln_release_kernel(kernel);
  CHECK(kiln_has_kernel("sample", &request, &error) == KILN_SUCCESS);
  request.fallback = fallback; /* no such version: an error that no fallback is for */
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_NOT_FOUND);
  return 0;
}

typedef struct {
  int count;
  int layer_done;
} Seen;

static void see(const kiln_event* event, void* user) {
  Seen* seen = user;
  ++seen->count;
  if (strcmp(event->stage, "layer") == 0 && event->total > 0 && event->done == event->total &&
      strcmp(event->subject, "sample@1 cpu-base") == 0) {
    seen->layer_done = 1;
  }
}

static int events(char** arguments) {
  Seen seen = {0, 0};
  kiln_request request = request_for(arguments);
  request.on_event = see;
  request.user = &seen;
  kiln_kernel* kernel = NULL;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_SUCCESS);
  CHECK(seen.count > 3 && seen.layer_done == 1);
  kiln_release_kernel(kernel);
  return 0;
}

static void* cancel_soon(void* cancel) {
  const struct timespec pause = {0, 200 * 1000 * 1000};
  nanosleep(&pause, NULL);
  kiln_cancel_now(cancel);
  return NULL;
}

/* The registry is a server that never answers. */
static int cancelled(char** arguments) {
  kiln_cancel* cancel = kiln_new_cancel();
  kiln_request request = request_for(arguments);
  request.cancel = cancel;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, cancel_soon, cancel) == 0);
  kiln_kernel* kernel = NULL;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_E_CANCELLED);
  CHECK(error.status == KILN_E_CANCELLED && kernel == NULL);
  pthread_join(thread, NULL);
  kiln_release_cancel(cancel);
  kiln_release_cancel(NULL);
  kiln_cancel_now(NULL);
  return 0;
}

static void release_it(const kiln_event* event, void* user) {
  (void)event;
  kiln_cancel** const cancel = user;
  kiln_release_cancel(*cancel);
  *cancel = NULL;
}

/* A call that holds what was released goes on to its end. */
static int released(char** arguments) {
  kiln_cancel* cancel = kiln_new_cancel();
  kiln_request request = request_for(arguments);
  request.cancel = cancel;
  request.on_event = release_it;
  request.user = &cancel;
  kiln_kernel* kernel = NULL;
  CHECK(kiln_get_kernel("sample", &request, &kernel, &error) == KILN_SUCCESS);
  CHECK(cancel == NULL);
  kiln_release_kernel(kernel);
  return 0;
}

static void take_a_while(const kiln_event* event, void* user) {
  (void)event;
  (void)user;
  const struct timespec moment = {0, 1000};
  nanosleep(&moment, NULL); /* a point of cancellation */
}

static int steps = 0; /* that returned to a thread that is to end */

/* Asked to end before its first call, a thread makes all of them: it ends after the last. */
static void* call_everything(void* user) {
  char** const arguments = user;
  kiln_request request = request_for(arguments);
  request.on_event = take_a_while;
  kiln_kernel* kernel = NULL;
  const kiln_op* op = NULL;
  char* json = NULL;
  size_t bytes = 0;
  kiln_call call;
  memset(&call, 0, sizeof call);
  call.struct_size = sizeof call;
  pthread_cancel(pthread_self());
  steps += kiln_has_kernel("sample", &request, &error) == KILN_E_OFFLINE;
  steps += kiln_resolve("sample", &request, &json, &error) == KILN_SUCCESS;
  steps += kiln_get_kernel("sample", &request, &kernel, &error) == KILN_SUCCESS;
  steps += kiln_has_kernel("sample", &request, &error) == KILN_SUCCESS;
  steps += kiln_kernel_explanation(kernel) != NULL;
  steps += kiln_find_op(kernel, "probe", &op, &error) == KILN_SUCCESS;
  steps += kiln_workspace_bytes(op, &call, &bytes, &error) == KILN_SUCCESS;
  steps += kiln_run(op, &call, &error) == KILN_E_INVALID_CALL;
  kiln_cancel* const cancel = kiln_new_cancel();
  kiln_cancel_now(cancel);
  kiln_release_cancel(cancel);
  kiln_release_text(json);
  kiln_release_kernel(kernel);
  ++steps;
  pthread_testcancel();
  ++steps;
  return NULL;
}

static int ended(char** arguments) {
  pthread_t thread;
  void* result = NULL;
  CHECK(pthread_create(&thread, NULL, call_everything, arguments) == 0);
  CHECK(pthread_join(thread, &result) == 0);
  CHECK(result == PTHREAD_CANCELED);
  CHECK(steps == 9);
  return 0;
}

static void end_thread(const kiln_event* event, void* user) {
  (void)event;
  (void)user;
  pthread_exit(NULL);
}

static void* get_and_end(void* user) {
  kiln_request request = request_for(user);
  request.on_event = end_thread;
  kiln_kernel* kernel = NULL;
  kiln_get_kernel("sample", &request, &kernel, &error);
  return NULL;
}

static int exits(char** arguments) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, get_and_end, arguments) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  return 0; /* kiln.h says that this is not reached */
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    int (*run)(char**);
  } cases[] = {
      {"run", run},       {"errors", errors}, {"sizes", sizes},         {"long-text", long_text},
      {"choice", choice}, {"events", events}, {"cancelled", cancelled}, {"released", released},
      {"ended", ended},   {"exits", exits}};
  if (argc != 4) return 2;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    if (strcmp(argv[1], cases[i].name) == 0) return cases[i].run(argv);
  }
  return 2;
}
