// SPDX-License-Identifier: Apache-2.0
#include "cpu/threads.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/quota.hpp"

namespace gated_mlp::cpu {
namespace {

// A region's threads end within microseconds of each other, and a layer's calls follow each other
// as closely; sleeping and being woken takes tens.
constexpr int kSpins = 512;

// Of Team::left_: its caller has gone to sleep.
constexpr uint32_t kCallerSleeps = 1u << 31;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Both are private to the process, and neither touches what the word guards: it is read and written
// by atomic operations alone. Waking is harmless where the word is gone by now.
void sleep_while(const uint32_t* word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake_all(const uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

// Rounding, and whether denormal numbers count as zero: PyTorch's set_flush_denormal, say.
uint64_t arithmetic() {
#if defined(__x86_64__)
  return __builtin_ia32_stmxcsr();
#elif defined(__aarch64__)
  uint64_t modes = 0;
  asm volatile("mrs %0, fpcr" : "=r"(modes));
  return modes;
#else
  return 0;
#endif
}

void set_arithmetic([[maybe_unused]] uint64_t modes) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(static_cast<uint32_t>(modes));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(modes));
#endif
}

// Of $OMP_NUM_THREADS, read by the first call that may use more than one thread.
int bound_of_environment() {
  static int bound = -1;
  int known = __atomic_load_n(&bound, __ATOMIC_RELAXED);
  if (known < 0) {
    known = threads_named(getenv("OMP_NUM_THREADS"));
    __atomic_store_n(&bound, known, __ATOMIC_RELAXED);
  }
  return known == 0 ? kMostThreads : known;
}

}  // namespace

int threads_named(const char* words) {
  if (words == nullptr) return 0;
  char* end = nullptr;
  const long number = strtol(words, &end, 10);
  while (*end == ' ' || *end == '\t') ++end;
  if (end == words || number < 1 || (*end != '\0' && *end != ',')) return 0;
  return number < kMostThreads ? static_cast<int>(number) : kMostThreads;
}

bool Affinity::read() {
  memset(sets, 0, sizeof(sets));
  return sched_getaffinity(0, sizeof(sets), sets) == 0;
}

int threads_for(double worth, int64_t items, uint32_t bound) {
  if (!(worth >= 2) || items < 2) return 1;
  int64_t most = kMostThreads;
  if (bound != 0 && bound < most) most = bound;
  if (items < most) most = items;
  if (worth < static_cast<double>(most)) most = static_cast<int64_t>(worth);
  if (bound_of_environment() < most) most = bound_of_environment();
  if (most < 2) return 1;
  Affinity affinity;
  const int cpus = affinity.read() ? CPU_COUNT_S(sizeof(affinity.sets), affinity.sets) : 1;
  if (cpus < most) most = cpus;
  if (most < 2) return 1;
  const int quota = recent_quota_cpus();
  return quota < most ? quota : static_cast<int>(most);
}

// A thread that is kept. It sleeps, or works for a team.
struct Worker {
  enum State : uint32_t { kWaits, kSleeps, kCalled };

  Worker* below;   // in the stack of those that wait
  Team* team;      // that it was called to
  uint32_t state;  // what its thread watches
  Affinity cpus;   // where it may run

  void call_to(Team& work) {
    team = &work;
    if (__atomic_exchange_n(&state, kCalled, __ATOMIC_ACQ_REL) == kSleeps) wake_all(&state);
  }
  bool start();  // its thread; false if there can be no more
  void wait_for_call();
  static void* live(void* self);
};

namespace {

// The workers of this process. One that has nothing to do is on a stack: those that worked last are
// called first, with their caches warm.
struct Crew {
  pthread_mutex_t lock;
  Worker* waiting;
  int made;
  bool leaves_at_fork;  // abandon() is registered
  Worker workers[kMostThreads - 1];
};
Crew crew = {PTHREAD_MUTEX_INITIALIZER, nullptr, 0, false, {}};

// In the child of a fork there are no workers, and the lock may be held by a thread that is not
// there either.
void abandon() {
  crew.lock = PTHREAD_MUTEX_INITIALIZER;
  crew.waiting = nullptr;
  crew.made = 0;
}

// Calls up to `wanted` workers to the team; returns how many there are.
int call_workers(Team& team, const Affinity& cpus, int wanted) {
  pthread_mutex_lock(&crew.lock);
  int count = 0;
  for (; count < wanted && crew.waiting != nullptr; ++count) {
    Worker& worker = *crew.waiting;
    crew.waiting = worker.below;
    worker.call_to(team);
  }
  if (!crew.leaves_at_fork) crew.leaves_at_fork = pthread_atfork(nullptr, nullptr, abandon) == 0;
  for (; crew.leaves_at_fork && count < wanted && crew.made < kMostThreads - 1; ++count) {
    Worker& worker = crew.workers[crew.made];
    worker.cpus = cpus;
    worker.call_to(team);
    if (!worker.start()) break;
    ++crew.made;
  }
  pthread_mutex_unlock(&crew.lock);
  return count;
}

}  // namespace

bool Worker::start() {
  sigset_t all;
  sigset_t before;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  pthread_t thread;
  const bool started = pthread_create(&thread, &attributes, live, this) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return started;
}

void Worker::wait_for_call() {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == kCalled) return;
    pause_cpu();
  }
  uint32_t waits = kWaits;
  __atomic_compare_exchange_n(&state, &waits, uint32_t{kSleeps}, false, __ATOMIC_ACQ_REL,
                              __ATOMIC_ACQUIRE);
  while (__atomic_load_n(&state, __ATOMIC_ACQUIRE) != kCalled) sleep_while(&state, kSleeps);
}

void* Worker::live(void* self) {
  Worker& worker = *static_cast<Worker*>(self);
  while (true) {
    worker.wait_for_call();
    Team& team = *worker.team;
    if (memcmp(&worker.cpus, &team.cpus_, sizeof(Affinity)) != 0) {
      worker.cpus = team.cpus_;
      sched_setaffinity(0, sizeof(worker.cpus.sets), worker.cpus.sets);
    }
    set_arithmetic(team.arithmetic_);
    team.function_(team.context_, team);
    __atomic_store_n(&worker.state, uint32_t{kWaits}, __ATOMIC_RELAXED);
    pthread_mutex_lock(&crew.lock);
    worker.below = crew.waiting;
    crew.waiting = &worker;
    pthread_mutex_unlock(&crew.lock);
    // The caller returns once all have left, and the team with it.
    uint32_t* const left = &team.left_;
    if ((__atomic_fetch_add(left, 1, __ATOMIC_ACQ_REL) & kCallerSleeps) != 0) wake_all(left);
  }
}

Team::Team(int threads) : wanted_(threads < kMostThreads ? threads : kMostThreads) {}

void Team::run(void (*function)(const void*, Team&), const void* context) {
  function_ = function;
  context_ = context;
  int workers = 0;
  if (wanted_ > 1) {
    cpus_.read();
    arithmetic_ = arithmetic();
    workers = call_workers(*this, cpus_, wanted_ - 1);
  }
  // The others work already. None ends the first region before it knows the size: this thread's
  // arrival is missing until then.
  __atomic_store_n(&size_, workers + 1, __ATOMIC_RELEASE);
  function(context, *this);
  wait_for_workers(static_cast<uint32_t>(workers));
}

void Team::wait_for_workers(uint32_t workers) {
  for (int spin = 0;; ++spin) {
    const uint32_t left = __atomic_load_n(&left_, __ATOMIC_ACQUIRE);
    if ((left & ~kCallerSleeps) == workers) return;
    if (spin < kSpins) {
      pause_cpu();
    } else if ((left & kCallerSleeps) == 0) {
      __atomic_fetch_or(&left_, kCallerSleeps, __ATOMIC_ACQ_REL);
    } else {
      sleep_while(&left_, left);
    }
  }
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

}  // namespace gated_mlp::cpu
