/* SPDX-License-Identifier: Apache-2.0
 *
 * libtest_clock.so: preloaded, a program whose clock is TEST_CLOCK_SHIFT seconds ahead, or behind
 * where that is negative. clock.py makes the command line.
 *
 * It takes no lock and no memory: AddressSanitizer's runtime asks for the time with its allocator's
 * lock held, and a clock that allocates then waits for itself. Kiln itself has no way to be told
 * another time, because an older one would make expired signatures valid.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec* now) {
  const long failed = syscall(SYS_clock_gettime, clock, now);
  if (failed != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
    return (int)failed;
  const char* const shift = getenv("TEST_CLOCK_SHIFT");
  if (shift != NULL) now->tv_sec += strtoll(shift, NULL, 10);
  return 0;
}

time_t time(time_t* seconds) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds != NULL) *seconds = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  (void)zone;
  struct timespec precise;
  const int failed = clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return failed;
}
