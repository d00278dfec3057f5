// SPDX-License-Identifier: Apache-2.0
#include "cpu_threads.hpp"

#include <pthread.h>
#include <sched.h>

namespace geglu_mlp::cpu {
namespace {

struct Work {
  void (*run)(const void*, int64_t);
  const void* context;
  int64_t items;
  int64_t next;
};

void* take_items(void* argument) {
  Work& work = *static_cast<Work*>(argument);
  for (;;) {
    const int64_t item = __atomic_fetch_add(&work.next, 1, __ATOMIC_RELAXED);
    if (item >= work.items) return nullptr;
    work.run(work.context, item);
  }
}

}  // namespace

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails only on machines with more CPUs than the set holds; those have plenty.
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return kMostThreads;
  const int count = CPU_COUNT(&set);
  return count < 1 ? 1 : count > kMostThreads ? kMostThreads : count;
}

void for_each_item(int threads, int64_t items, void (*run)(const void*, int64_t),
                   const void* context) {
  Work work = {run, context, items, 0};
  const int64_t wanted = threads < items ? threads : items;
  pthread_t started[kMostThreads];
  int count = 0;
  while (count + 1 < wanted && count < kMostThreads &&
         pthread_create(&started[count], nullptr, take_items, &work) == 0) {
    ++count;
  }
  take_items(&work);
  for (int i = 0; i < count; ++i) pthread_join(started[i], nullptr);
}

}  // namespace geglu_mlp::cpu
