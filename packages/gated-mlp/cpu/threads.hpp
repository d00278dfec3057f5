// SPDX-License-Identifier: Apache-2.0
//
// Threads: one team for each call, of the caller and of workers that are kept. All its threads run
// the same function and share out the items of one parallel region after the other. Which thread
// takes an item does not change its result.
//
// A worker is made when a call first wants it, and sleeps between calls: waking it takes about a
// tenth of what making a thread takes. It belongs to no caller: calls from several threads share
// the workers that sleep, and make those that are missing. A child of fork() has none and makes its
// own. For the time of a call a worker has the caller's affinity mask and its modes of
// floating-point arithmetic, as a thread that the caller had made. It blocks every signal. Where
// the system gives fewer threads than asked for, fewer do the work.
#pragma once

#include <sched.h>
#include <stdint.h>

namespace gated_mlp::cpu {

inline constexpr int kMostThreads = 256;

// Threads that a call may use, 1 to kMostThreads: no more than the CPUs in the calling thread's
// affinity mask, than the control groups grant (cpu_quota.hpp), than $OMP_NUM_THREADS names, than
// `worth`, than `items`, the most that a region has, and than `bound`, which the call names; 0 is
// none. Asks the system only if more than one is left.
int threads_for(double worth, int64_t items, uint32_t bound = 0);

// The number that OMP_NUM_THREADS begins with, "4" or "4,2"; 0 where it is none.
int threads_named(const char* words);

// The CPUs on which a thread may run.
struct Affinity {
  cpu_set_t sets[8];  // 8,192 CPUs, the most that Linux has

  bool read();  // the calling thread's; false, and empty, if Linux does not say
};

class Team {
 public:
  explicit Team(int threads);  // the caller's and threads - 1 more
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Calls function(context, *this) on every thread of the team; returns when all have returned.
  void run(void (*function)(const void* context, Team& team), const void* context);

  // A region. Every thread calls it, with the same items: function(item) is called once for each
  // item in [0, items), and all are done when it returns.
  template <class Function>
  void for_each_item(int64_t items, const Function& function) {
    for (int64_t item = take(); item < items; item = take()) function(item);
    wait_for_others();
  }

 private:
  friend struct Worker;
  int64_t take() { return __atomic_fetch_add(&next_, 1, __ATOMIC_RELAXED); }
  void wait_for_others();
  void wait_for_workers(uint32_t workers);

  int wanted_;
  void (*function_)(const void*, Team&) = nullptr;
  const void* context_ = nullptr;
  Affinity cpus_;                    // the caller's
  uint64_t arithmetic_ = 0;          // the caller's modes
  alignas(64) int64_t next_ = 0;     // the item to take
  alignas(64) int32_t arrived_ = 0;  // threads at the end of the region
  int32_t size_ = INT32_MAX;         // of the team; known once the caller has called all workers
  alignas(64) uint32_t region_ = 0;  // regions ended; what waiting threads watch
  alignas(64) uint32_t left_ = 0;    // workers that have ended their work, and kCallerSleeps
};

// Calls function(team) on each thread of a team of `threads`.
template <class Function>
void run_team(int threads, const Function& function) {
  Team team(threads);
  team.run([](const void* context, Team& all) { (*static_cast<const Function*>(context))(all); },
           &function);
}

}  // namespace gated_mlp::cpu
