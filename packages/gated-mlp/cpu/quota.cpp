// SPDX-License-Identifier: Apache-2.0
#include "cpu/quota.hpp"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

namespace gated_mlp::cpu {
namespace {

// A file as text, cut at what fits; empty if there is none.
struct Text {
  char at[8192];

  explicit Text(const char* path) {
    size_t size = 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
      ssize_t count = 0;
      while ((count = read(file, at + size, sizeof(at) - 1 - size)) > 0) {
        size += static_cast<size_t>(count);
      }
      close(file);
    }
    at[size] = '\0';
  }
};

struct Path {
  char at[4096];

  // False if it does not fit.
  bool set(const char* folder, const char* name) {
    const int length = snprintf(at, sizeof(at), "%s%s", folder, name);
    return length >= 0 && static_cast<size_t>(length) < sizeof(at);
  }
};

int least(int a, int b) {
  return a < b ? a : b;
}

int cpus_of(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return kNoQuota;  // v1 writes -1 for none
  const long long cpus = (quota - 1) / period + 1;
  return cpus < kNoQuota ? static_cast<int>(cpus) : kNoQuota;
}

// "200000 100000"; "max 100000" for none, which reads as 0.
int cpus_of_v2(const char* folder) {
  Path path;
  if (!path.set(folder, "/cpu.max")) return kNoQuota;
  const Text text(path.at);
  char* end = nullptr;
  const long long quota = strtoll(text.at, &end, 10);
  return cpus_of(quota, strtoll(end, nullptr, 10));
}

int cpus_of_v1(const char* folder) {
  Path quota;
  Path period;
  if (!quota.set(folder, "/cpu.cfs_quota_us") || !period.set(folder, "/cpu.cfs_period_us")) {
    return kNoQuota;
  }
  return cpus_of(strtoll(Text(quota.at).at, nullptr, 10), strtoll(Text(period.at).at, nullptr, 10));
}

// The least of a group and all above it. A container may name its group as its host does, and have
// it mounted as the root: folders that are not there count for nothing.
int least_upwards(const Path& mount, const char* group, int (*cpus_of_folder)(const char*)) {
  Path folder;
  if (!folder.set(mount.at, group)) return kNoQuota;
  char* const inside = folder.at + strlen(mount.at);
  int cpus = cpus_of_folder(mount.at);
  while (*inside != '\0') {
    if (inside[1] != '\0') cpus = least(cpus, cpus_of_folder(folder.at));
    *strrchr(inside, '/') = '\0';
  }
  return cpus;
}

bool names_cpu(const char* controllers) {
  for (const char* at = controllers; at != nullptr; at = strchr(at, ',')) {
    at += *at == ',' ? 1 : 0;
    const size_t length = strcspn(at, ",");
    if (length == 3 && strncmp(at, "cpu", 3) == 0) return true;
  }
  return false;
}

// `line` is "hierarchy:controllers:/group"; v2's hierarchy is 0 and names no controller.
int cpus_of_line(const char* root, char* line) {
  char* const controllers = strchr(line, ':');
  char* const group = controllers == nullptr ? nullptr : strchr(controllers + 1, ':');
  if (group == nullptr || group[1] != '/') return kNoQuota;
  *controllers = '\0';
  *group = '\0';
  Path mount;
  if (strcmp(line, "0") == 0) {
    return mount.set(root, "/sys/fs/cgroup") ? least_upwards(mount, group + 1, cpus_of_v2)
                                             : kNoQuota;
  }
  if (!names_cpu(controllers + 1)) return kNoQuota;
  return mount.set(root, "/sys/fs/cgroup/cpu") ? least_upwards(mount, group + 1, cpus_of_v1)
                                               : kNoQuota;
}

}  // namespace

int quota_cpus(const char* root) {
  Path path;
  if (!path.set(root, "/proc/self/cgroup")) return kNoQuota;
  Text groups(path.at);
  int cpus = kNoQuota;
  char* rest = nullptr;
  for (char* line = strtok_r(groups.at, "\n", &rest); line != nullptr;
       line = strtok_r(nullptr, "\n", &rest)) {
    cpus = least(cpus, cpus_of_line(root, line));
  }
  return cpus;
}

int recent_quota_cpus() {
  constexpr int64_t kSecond = 1000000000;
  // Threads that find it old at one time all read it: they write the same.
  static int64_t read_at = -kSecond;
  static int cpus = kNoQuota;
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  const int64_t now = time.tv_sec * kSecond + time.tv_nsec;
  if (now - __atomic_load_n(&read_at, __ATOMIC_ACQUIRE) >= kSecond / 10) {
    __atomic_store_n(&cpus, quota_cpus(""), __ATOMIC_RELAXED);
    __atomic_store_n(&read_at, now, __ATOMIC_RELEASE);
  }
  return __atomic_load_n(&cpus, __ATOMIC_RELAXED);
}

}  // namespace gated_mlp::cpu
