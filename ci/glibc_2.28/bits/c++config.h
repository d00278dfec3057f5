// SPDX-License-Identifier: Apache-2.0
//
// What GCC's C++ library was configured for, without what glibc 2.28 does not have: functions
// of 2.30. Before that library's own headers in the search path (ci/dependencies); changes no
// layout and no symbol.
#include_next <bits/c++config.h>

#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK
#undef _GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK
