// SPDX-License-Identifier: Apache-2.0
//
// gated_mlp_cpu_threads_check: how many threads a first call of the published CPU variant makes, on
// as many CPUs as fake_system.hpp says. This program defines the functions that the package asks,
// and so stands before the C library. Exit status 0: none made too many, and a large one not too
// few.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <vector>

#include "fake_system.hpp"
#include "kiln/kiln.hpp"
#include "kiln/layers/geglu_mlp.hpp"

namespace {

template <class Function>
Function* next(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier): the linker names them so
extern "C" {

int __wrap_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int __wrap_sched_getaffinity(pid_t, size_t, cpu_set_t*);
int __wrap_clock_gettime(clockid_t, timespec*);
int __wrap_open(const char*, int, ...);

int __real_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int __real_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                          void* (*function)(void*), void* argument) {
  return next(pthread_create, "pthread_create")(thread, attributes, function, argument);
}
int __real_sched_getaffinity(pid_t, size_t, cpu_set_t*);
int __real_sched_getaffinity(pid_t process, size_t size, cpu_set_t* set) {
  return next(sched_getaffinity, "sched_getaffinity")(process, size, set);
}
int __real_clock_gettime(clockid_t, timespec*);
int __real_clock_gettime(clockid_t clock, timespec* time) {
  return next(clock_gettime, "clock_gettime")(clock, time);
}
int __real_open(const char*, int, ...);
int __real_open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return next(open, "open")(path, flags, mode);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*function)(void*),
                   void* argument) noexcept {
  return __wrap_pthread_create(thread, attributes, function, argument);
}
int sched_getaffinity(pid_t process, size_t size, cpu_set_t* set) noexcept {
  return __wrap_sched_getaffinity(process, size, set);
}
int clock_gettime(clockid_t clock, timespec* time) noexcept {
  return __wrap_clock_gettime(clock, time);
}
int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return __wrap_open(path, flags, mode);
}
// A machine of 64 CPUs; how many of them a call has, the mask says.
long sysconf(int name) noexcept {
  return name == _SC_NPROCESSORS_CONF ? 64 : next(sysconf, "sysconf")(name);
}
// What a hardened package calls where no mode is given.
int __open_2(const char* path, int flags);
int __open_2(const char* path, int flags) {
  return __wrap_open(path, flags);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)

namespace {

using gated_mlp_test::FakeSystem;

struct Shape {
  std::int64_t m, d, h;
};

struct Machine {
  int cpus;
  const char* quota;  // cpu.max
  int most;           // threads that a call may make
};

/// The threads that `work` makes on the machine, in a process of its own: workers are kept, and the
/// child of a fork has none.
int threads_made(const Machine& machine, const std::function<void()>& work) {
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    int made = 255;
    try {
      FakeSystem fake(machine.cpus);
      fake.write("proc/self/cgroup", "0::/\n");
      fake.write("sys/fs/cgroup/cpu.max", machine.quota);
      work();
      made = fake.created;
    } catch (const std::exception& error) {
      std::cerr << error.what() << '\n';
    }
    _exit(made);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
    throw std::runtime_error("the child of a fork did not end well");
  }
  return WEXITSTATUS(status);
}

/// Calls `work` on each machine; false, with a line, where it makes more threads than it may, or,
/// being large, fewer.
/// `bound`: Request::threads of the kernel that it calls.
bool check(const std::string& what, bool large, int bound, const std::function<void()>& work) {
  work();  // so that there are workers at the fork
  bool passed = true;
  for (const Machine& machine :
       {Machine{1, "max 100000", 0}, Machine{2, "max 100000", 1}, Machine{16, "max 100000", 15},
        Machine{64, "max 100000", 63}, Machine{64, "300000 100000", 2}}) {
    const int made = threads_made(machine, work);
    const int most = bound == 0 ? machine.most : std::min(machine.most, bound - 1);
    if (large ? made == most : made <= most) continue;
    std::cout << "FAILED " << what << " on " << machine.cpus << " CPUs, quota " << machine.quota
              << ": makes " << made << " threads, expected " << (large ? "" : "at most ") << most
              << '\n';
    passed = false;
  }
  return passed;
}

bool check_forward(const kiln::Kernel& kernel, Shape shape, bool large, int bound) {
  const auto zeros = [](std::int64_t rows, std::int64_t columns) {
    return std::vector<float>(static_cast<std::size_t>(rows * columns));
  };
  std::vector<float> x = zeros(shape.m, shape.d);
  std::vector<float> y = zeros(shape.m, shape.d);
  std::vector<float> weights = zeros(shape.h, shape.d);  // of gate, up and down
  const auto view = [](std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
    return kiln::Tensor(values.data(), kiln::DType::kFloat32, {rows, columns}, kiln::Device::cpu());
  };
  auto layer = kernel.layer<kiln::layers::GegluMlp>({.gate = view(weights, shape.h, shape.d),
                                                     .up = view(weights, shape.h, shape.d),
                                                     .down = view(weights, shape.d, shape.h)});
  return check("forward [" + std::to_string(shape.m) + "," + std::to_string(shape.d) + "," +
                   std::to_string(shape.h) + "]",
               large, bound,
               [&] { layer.forward(view(x, shape.m, shape.d), view(y, shape.m, shape.d)); });
}

bool check_pointwise(const kiln::Kernel& kernel, std::int64_t rows, int bound) {
  constexpr std::int64_t kColumns = 3072;
  std::vector<float> values(static_cast<std::size_t>(rows * kColumns));
  const kiln::Tensor tensor(values.data(), kiln::DType::kFloat32, {rows, kColumns},
                            kiln::Device::cpu());
  const auto op = kernel.op<kiln::ops::geglu_mlp::Geglu>();
  return check("geglu [" + std::to_string(rows) + "," + std::to_string(kColumns) + "]", rows > 1000,
               bound, [&] { op.run({.gate = tensor, .up = tensor, .out = tensor}); });
}

}  // namespace

int main() {
  try {
    kiln::Request request{.version = 1, .device = kiln::Device::cpu()};
    const kiln::Kernel kernel = kiln::get_kernel("geglu-mlp", request);
    bool passed = true;
    for (const Shape shape : {Shape{1, 8, 8}, Shape{1, 768, 3072}, Shape{24, 768, 768},
                              Shape{25, 64, 64}, Shape{64, 768, 768}, Shape{1100, 64, 64}}) {
      passed = check_forward(kernel, shape, false, 0) && passed;
    }
    passed = check_forward(kernel, {8192, 768, 3072}, true, 0) && passed;
    for (const std::int64_t rows : {1, 100, 4000}) {
      passed = check_pointwise(kernel, rows, 0) && passed;
    }
    request.threads = 3;
    const kiln::Kernel bounded = kiln::get_kernel("geglu-mlp", request);
    passed = check_forward(bounded, {1024, 768, 3072}, true, request.threads) && passed;
    passed = check_pointwise(bounded, 4000, request.threads) && passed;
    return passed ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "gated_mlp_cpu_threads_check: " << error.what() << '\n';
    return 1;
  }
}
