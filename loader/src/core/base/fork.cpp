// SPDX-License-Identifier: Apache-2.0
#include "base/fork.hpp"

#include <pthread.h>

#include <atomic>

namespace kiln {
namespace {

// Readers do the work, a fork is the writer. glibc prefers readers, so that a nested reader does
// not wait for a writer that waits for it.
pthread_rwlock_t gate = PTHREAD_RWLOCK_INITIALIZER;

// Set while the gate is read, used by the writer.
std::atomic<AroundFork*> registered = nullptr;

// Registered before main, when there is one thread: the first use would itself need a guard.
[[maybe_unused]] const int handlers = ::pthread_atfork(
    [] {
      ::pthread_rwlock_wrlock(&gate);
      if (AroundFork* const around = registered) around->before_fork();
    },
    [] {
      if (AroundFork* const around = registered) around->after_fork_in_parent();
      ::pthread_rwlock_unlock(&gate);
    },
    [] {
      if (AroundFork* const around = registered) around->after_fork_in_child();
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

void at_fork(AroundFork& around) {
  registered = &around;
}

}  // namespace kiln
