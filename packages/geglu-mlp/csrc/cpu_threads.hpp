// SPDX-License-Identifier: Apache-2.0
//
// Threads: one team for each call. All its threads run the same function and share out the items of
// one parallel region after the other. No thread outlives its call: a team is made and joined
// within one, so forking is safe; where the system gives fewer threads than asked for, fewer do the
// work. Which thread takes an item does not change its result.
#pragma once

#include <stdint.h>

namespace geglu_mlp::cpu {

inline constexpr int kMostThreads = 256;

// Threads that a call may use, 1 to kMostThreads: no more than the CPUs in the calling thread's
// affinity mask, than the control groups grant (cpu_quota.hpp), than `worth` and than `items`, the
// most that a region has. Asks the system only if worth is 2 or more.
int threads_for(double worth, int64_t items);

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
  static void* work(void* team);
  int64_t take() { return __atomic_fetch_add(&next_, 1, __ATOMIC_RELAXED); }
  void wait_for_others();

  int wanted_;
  void (*function_)(const void*, Team&) = nullptr;
  const void* context_ = nullptr;
  alignas(64) int64_t next_ = 0;     // the item to take
  alignas(64) int32_t arrived_ = 0;  // threads at the end of the region
  int32_t size_ = INT32_MAX;         // of the team; known once the caller has made all threads
  alignas(64) uint32_t region_ = 0;  // regions ended; what waiting threads watch
};

// Calls function(team) on each thread of a team of `threads`.
template <class Function>
void run_team(int threads, const Function& function) {
  Team team(threads);
  team.run([](const void* context, Team& all) { (*static_cast<const Function*>(context))(all); },
           &function);
}

}  // namespace geglu_mlp::cpu
