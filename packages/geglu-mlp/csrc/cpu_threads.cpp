// SPDX-License-Identifier: Apache-2.0
#include "cpu_threads.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu_quota.hpp"

namespace geglu_mlp::cpu {
namespace {

// A region's threads end within microseconds of each other; sleeping and being woken takes tens.
constexpr int kSpins = 512;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Both are private to the process, and neither touches what the word guards: it is read and written
// by atomic operations alone.
void sleep_while(const uint32_t* word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake_all(const uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

int affinity_cpus() {
  cpu_set_t sets[8];  // 8,192 CPUs, the most that Linux has
  if (sched_getaffinity(0, sizeof(sets), sets) != 0) return 1;
  return CPU_COUNT_S(sizeof(sets), sets);
}

}  // namespace

int threads_for(double worth, int64_t items) {
  if (!(worth >= 2) || items < 2) return 1;
  int64_t most = kMostThreads;
  if (items < most) most = items;
  if (worth < static_cast<double>(most)) most = static_cast<int64_t>(worth);
  const int affinity = affinity_cpus();
  if (affinity < most) most = affinity;
  if (most < 2) return 1;
  const int quota = recent_quota_cpus();
  return quota < most ? quota : static_cast<int>(most);
}

Team::Team(int threads) : wanted_(threads < kMostThreads ? threads : kMostThreads) {}

void* Team::work(void* argument) {
  Team& team = *static_cast<Team*>(argument);
  team.function_(team.context_, team);
  return nullptr;
}

void Team::run(void (*function)(const void*, Team&), const void* context) {
  function_ = function;
  context_ = context;
  pthread_t started[kMostThreads];
  int count = 0;
  while (count + 1 < wanted_ && pthread_create(&started[count], nullptr, work, this) == 0) {
    ++count;
  }
  // The others work already. None ends the first region before it knows the size: this thread's
  // arrival is missing until then.
  __atomic_store_n(&size_, count + 1, __ATOMIC_RELEASE);
  work(this);
  for (int i = 0; i < count; ++i) pthread_join(started[i], nullptr);
}

void Team::wait_for_others() {
  const uint32_t region = __atomic_load_n(&region_, __ATOMIC_RELAXED);  // ends with this thread
  const int32_t arrived = __atomic_add_fetch(&arrived_, 1, __ATOMIC_ACQ_REL);
  if (arrived == __atomic_load_n(&size_, __ATOMIC_ACQUIRE)) {
    __atomic_store_n(&arrived_, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&next_, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&region_, region + 1, __ATOMIC_RELEASE);
    if (arrived > 1) wake_all(&region_);
    return;
  }
  for (int spin = 0; __atomic_load_n(&region_, __ATOMIC_ACQUIRE) == region; ++spin) {
    if (spin < kSpins) {
      pause_cpu();
    } else {
      sleep_while(&region_, region);
    }
  }
}

}  // namespace geglu_mlp::cpu
