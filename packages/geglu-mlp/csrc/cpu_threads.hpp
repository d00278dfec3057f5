// SPDX-License-Identifier: Apache-2.0
//
// Threads: runs numbered items on the CPUs this thread may use. No state between calls: threads are
// made and joined within one, so forking is safe; where the system gives fewer threads than asked
// for, fewer do the work. Which thread takes an item does not change its result.
#pragma once

#include <stdint.h>

namespace geglu_mlp::cpu {

// CPUs in this thread's affinity mask, 1 to kMostThreads.
inline constexpr int kMostThreads = 256;
int usable_cpus();

// Calls run(context, item) once for each item in [0, items), on up to `threads` threads; returns
// when all are done.
void for_each_item(int threads, int64_t items, void (*run)(const void* context, int64_t item),
                   const void* context);

template <class Function>
void for_each_item(int threads, int64_t items, const Function& function) {
  for_each_item(
      threads, items,
      [](const void* context, int64_t item) { (*static_cast<const Function*>(context))(item); },
      &function);
}

}  // namespace geglu_mlp::cpu
