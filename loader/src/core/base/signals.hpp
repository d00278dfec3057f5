// SPDX-License-Identifier: Apache-2.0
//
// Signals: what the host program must not get from a call into Kiln. For one thread.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace kiln {

/// While it lives, a write beyond RLIMIT_FSIZE is EFBIG and does not end the process by SIGXFSZ.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    ::sigemptyset(&signal_);
    ::sigaddset(&signal_, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoFileSizeSignal() {
    if (::sigismember(&before_, SIGXFSZ) != 0) return;
    const timespec now{};
    while (::sigtimedwait(&signal_, nullptr, &now) == SIGXFSZ) {  // ours: takes it back
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  sigset_t signal_{};
  sigset_t before_{};
};

/// While it lives, pthread_cancel waits: a thread that ends in the middle of a load would run no
/// destructor that libraries below expect.
class NoCancel {
 public:
  NoCancel() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancel() { ::pthread_setcancelstate(before_, nullptr); }
  NoCancel(const NoCancel&) = delete;
  NoCancel& operator=(const NoCancel&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace kiln
