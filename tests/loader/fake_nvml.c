/* SPDX-License-Identifier: Apache-2.0
 *
 * An NVML whose machine is described by the environment: FAKE_GPUS is a list of capabilities in PCI
 * order ("9.0,8.0"), each with the end of its name ("8.6a,8.6b"); FAKE_MIG=2 splits the first GPU
 * into two instances (of the indexes 1 and 3), FAKE_BROKEN=1 fails to start, FAKE_FORK=1 starts
 * another program first, as NVIDIA's libraries start nvidia-modprobe.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char* gpus(void) {
  const char* list = getenv("FAKE_GPUS");
  return list != NULL ? list : "";
}

/* Instances are handles from here on. */
enum { kFirstInstance = 1000, kMaxInstances = 7 };

static unsigned instances(void) {
  const char* number = getenv("FAKE_MIG");
  return number != NULL ? (unsigned)atoi(number) : 0;
}

static int is_instance(const void* device) {
  return (size_t)device >= kFirstInstance;
}

/* "8.6a", and what follows it. */
static const char* gpu(const void* device) {
  const char* at = gpus();
  for (size_t i = 1; i < (size_t)device; ++i) at = strchr(at, ',') + 1;
  return at;
}

static unsigned count(void) {
  if (*gpus() == '\0') return 0;
  unsigned commas = 0;
  for (const char* at = gpus(); *at != '\0'; ++at) commas += *at == ',';
  return commas + 1;
}

int nvmlInit_v2(void);
int nvmlInit_v2(void) {
  if (getenv("FAKE_FORK") != NULL) {
    const pid_t child = fork();
    if (child == 0) {
      execl("/bin/true", "true", (char*)NULL);
      _exit(1);
    }
    if (child < 0 || waitpid(child, NULL, 0) != child) return 9;
  }
  return getenv("FAKE_BROKEN") != NULL ? 9 : 0;
}
int nvmlShutdown(void);
int nvmlShutdown(void) {
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version);
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 12040;
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* number);
int nvmlDeviceGetCount_v2(unsigned* number) {
  *number = count();
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = (void*)(size_t)(index + 1);
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned size);
int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  if (is_instance(device)) {
    snprintf(text, size, "MIG-%c0000000-0000", (int)('a' + (size_t)device - kFirstInstance));
    return 0;
  }
  snprintf(text, size, "GPU-%c0000000-0000", (int)('a' + (size_t)device - 1));
  return 0;
}
int nvmlDeviceGetName(void* device, char* text, unsigned size);
int nvmlDeviceGetName(void* device, char* text, unsigned size) {
  if (is_instance(device)) {
    snprintf(text, size, "nvml0-MIG-%ug", (unsigned)((size_t)device - kFirstInstance));
    return 0;
  }
  const char* const name = gpu(device) + strspn(gpu(device), "0123456789.");
  snprintf(text, size, "nvml%.*s", (int)strcspn(name, ","), name);
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor);
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  if (is_instance(device)) return 3; /* not supported: an instance is asked through its GPU */
  return sscanf(gpu(device), "%d.%d", major, minor) == 2 ? 0 : 999;
}
int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending);
int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  *current = instances() != 0 && device == (void*)1;
  *pending = *current;
  return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void* device, unsigned* number);
int nvmlDeviceGetMaxMigDeviceCount(void* device, unsigned* number) {
  *number = device == (void*)1 ? kMaxInstances : 0;
  return 0;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void* device, unsigned index, void** instance);
int nvmlDeviceGetMigDeviceHandleByIndex(void* device, unsigned index, void** instance) {
  if (device != (void*)1 || index % 2 == 0 || index / 2 >= instances()) return 6; /* none there */
  *instance = (void*)(size_t)(kFirstInstance + index);
  return 0;
}
