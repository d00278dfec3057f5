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

// How many NoForks of this thread live. What it calls under one may fork (cuInit and nvmlInit start
// nvidia-modprobe): such a fork does not wait for itself, nor has it anything of its own to lose.
thread_local int nested = 0;

// Registered before main, when there is one thread: the first use would itself need a guard.
[[maybe_unused]] const int handlers = ::pthread_atfork(
    [] {
      if (nested > 0) return;
      ::pthread_rwlock_wrlock(&gate);
      if (AroundFork* const around = registered) around->before_fork();
    },
    [] {
      if (nested > 0) return;
      if (AroundFork* const around = registered) around->after_fork_in_parent();
      ::pthread_rwlock_unlock(&gate);
    },
    [] {
      if (nested == 0) {
        if (AroundFork* const around = registered) around->after_fork_in_child();
        ::pthread_rwlock_unlock(&gate);
      }
      gate = PTHREAD_RWLOCK_INITIALIZER;  // readers of other threads do not exist in the child
      for (int i = 0; i < nested; ++i) ::pthread_rwlock_rdlock(&gate);
    });

}  // namespace

NoFork::NoFork() {
  ::pthread_rwlock_rdlock(&gate);
  ++nested;
}

NoFork::~NoFork() {
  --nested;
  ::pthread_rwlock_unlock(&gate);
}

void at_fork(AroundFork& around) {
  registered = &around;
}

}  // namespace kiln
