// SPDX-License-Identifier: Apache-2.0
#include "base/fork.hpp"

#include <pthread.h>

#include <atomic>

namespace kiln {
namespace {

// Readers do the work, a fork is the writer. glibc prefers readers, so that a nested reader does
// not wait for a writer that waits for it.
pthread_rwlock_t gate = PTHREAD_RWLOCK_INITIALIZER;

/// Added to while the gate is read, gone through by the writer. Never destroyed.
struct Registered {
  AroundFork around;
  Registered* next = nullptr;
};
std::atomic<Registered*> newest = nullptr;

void each_registered(void (*AroundFork::*step)()) {
  for (const Registered* each = newest; each != nullptr; each = each->next) (each->around.*step)();
}

// Registered before main, when there is one thread: the first use would itself need a guard.
[[maybe_unused]] const int registered = ::pthread_atfork(
    [] {
      ::pthread_rwlock_wrlock(&gate);
      each_registered(&AroundFork::before);
    },
    [] {
      each_registered(&AroundFork::in_parent);
      ::pthread_rwlock_unlock(&gate);
    },
    [] {
      each_registered(&AroundFork::in_child);
      ::pthread_rwlock_unlock(&gate);
      gate = PTHREAD_RWLOCK_INITIALIZER;  // readers that waited do not exist in the child
    });

}  // namespace

NoFork::NoFork() {
  ::pthread_rwlock_rdlock(&gate);
}

NoFork::~NoFork() {
  ::pthread_rwlock_unlock(&gate);
}

void at_fork(const AroundFork& around) {
  auto* const added = new Registered{around};
  added->next = newest;
  while (!newest.compare_exchange_weak(added->next, added)) {
  }
}

}  // namespace kiln
