// SPDX-License-Identifier: Apache-2.0
//
// Parallel: the rows of a call, shared out to as many CPU threads as are worth it. Which thread
// computes a row does not change what it gives.
#pragma once

#include "cpu/threads.hpp"

namespace rows {

// Calls function(i) for each i in [0, items), which together read `elements`; `threads` is the
// call's.
template <class Function>
void for_each(int64_t items, int64_t elements, uint32_t threads, const Function& function) {
  constexpr double kThreadElements = 65536;  // below, calling a thread costs more than it saves
  if (items == 0) return;
  const int64_t run = elements / items < 8192 ? 8192 / (elements / items + 1) : 1;
  const int64_t runs = (items + run - 1) / run;
  const double worth = static_cast<double>(elements) / kThreadElements + 1;
  using gated_mlp::cpu::Team;
  gated_mlp::cpu::run_team(gated_mlp::cpu::threads_for(worth, runs, threads), [&](Team& team) {
    team.for_each_item(runs, [&](int64_t number) {
      const int64_t end = (number + 1) * run < items ? (number + 1) * run : items;
      for (int64_t i = number * run; i < end; ++i) function(i);
    });
  });
}

}  // namespace rows
