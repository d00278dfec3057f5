// SPDX-License-Identifier: Apache-2.0
#include "fake_system.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <fstream>
#include <stdexcept>

namespace gated_mlp_test {
namespace {

namespace fs = std::filesystem;

FakeSystem* current = nullptr;
std::atomic<int> waited_milliseconds = 0;

}  // namespace

FakeSystem::FakeSystem(int cpus_in_mask) : cpus(cpus_in_mask) {
  std::string name = (fs::temp_directory_path() / "kiln-system-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name + " failed");
  root_ = name;
  current = this;
  wait(1000);
}

FakeSystem::~FakeSystem() {
  current = nullptr;
  fs::remove_all(root_);
}

void FakeSystem::write(const std::string& path, const std::string& text) const {
  const fs::path file = root_ / path;
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

void FakeSystem::wait(int milliseconds) const {
  waited_milliseconds += milliseconds;
}

}  // namespace gated_mlp_test

using gated_mlp_test::current;

// NOLINTBEGIN(bugprone-reserved-identifier): the linker names them so
extern "C" {

int __real_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int __wrap_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                          void* (*function)(void*), void* argument) {
  if (current != nullptr && current->created++ >= current->most_created) return EAGAIN;
  return __real_pthread_create(thread, attributes, function, argument);
}

int __real_sched_getaffinity(pid_t, size_t, cpu_set_t*);
int __wrap_sched_getaffinity(pid_t, size_t, cpu_set_t*);
int __wrap_sched_getaffinity(pid_t process, size_t size, cpu_set_t* set) {
  if (current == nullptr) return __real_sched_getaffinity(process, size, set);
  ++current->asked;
  CPU_ZERO_S(size, set);
  for (int cpu = 0; cpu < current->cpus; ++cpu) {
    CPU_SET_S(static_cast<unsigned>(cpu), size, set);
  }
  return 0;
}

int __real_clock_gettime(clockid_t, timespec*);
int __wrap_clock_gettime(clockid_t, timespec*);
int __wrap_clock_gettime(clockid_t clock, timespec* time) {
  const int status = __real_clock_gettime(clock, time);
  if (status != 0) return status;
  constexpr int kBillion = 1000000000;
  const int waited = gated_mlp_test::waited_milliseconds;
  const int64_t nanoseconds = time->tv_nsec + waited % 1000 * int64_t{1000000};
  time->tv_sec += waited / 1000 + nanoseconds / kBillion;
  time->tv_nsec = nanoseconds % kBillion;
  return 0;
}

int __real_open(const char*, int, ...);
int __wrap_open(const char*, int, ...);
int __wrap_open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  const std::string text = path;
  const bool absolute = text.rfind("/proc/", 0) == 0 || text.rfind("/sys/", 0) == 0;
  if (current == nullptr || !absolute) return __real_open(path, flags, mode);
  ++current->asked;
  return __real_open((current->root().string() + text).c_str(), flags, mode);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)
