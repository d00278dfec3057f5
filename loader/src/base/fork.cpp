// SPDX-License-Identifier: Apache-2.0
#include "base/fork.hpp"

#include <pthread.h>

namespace kiln {
namespace {

// Readers do the work, a fork is the writer. glibc prefers readers, so that a nested reader does
// not wait for a writer that waits for it.
pthread_rwlock_t gate = PTHREAD_RWLOCK_INITIALIZER;

// Registered before main, when there is one thread: the first use would itself need a guard.
[[maybe_unused]] const int registered = ::pthread_atfork(
    [] { ::pthread_rwlock_wrlock(&gate); }, [] { ::pthread_rwlock_unlock(&gate); },
    [] {
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

}  // namespace kiln
