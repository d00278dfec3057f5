/* SPDX-License-Identifier: Apache-2.0
 *
 * An NVML whose machine is described by the environment: FAKE_GPUS is a list of capabilities in PCI
 * order ("9.0,8.0"), FAKE_MIG=2 splits the first GPU into two instances (of the indexes 1 and 3),
 * FAKE_BROKEN=1 fails to start.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static unsigned count(void) {
  if (*gpus() == '\0') return 0;
  unsigned commas = 0;
  for (const char* at = gpus(); *at != '\0'; ++at) commas += *at == ',';
  return commas + 1;
}

int nvmlInit_v2(void);
int nvmlInit_v2(void) {
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
  snprintf(text, size, "nvml%u", (unsigned)((size_t)device - 1));
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor);
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  if (is_instance(device)) return 3; /* not supported: an instance is asked through its GPU */
  const char* at = gpus();
  for (size_t i = 1; i < (size_t)device; ++i) at = strchr(at, ',') + 1;
  return sscanf(at, "%d.%d", major, minor) == 2 ? 0 : 999;
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
