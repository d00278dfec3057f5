/* SPDX-License-Identifier: Apache-2.0
 *
 * The two names that the static C++ library of Debian 12 takes from a glibc later than 2.28: linked
 * with it into the programs and libkiln.so of the relocatable packages.
 */
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* glibc 2.32. 0: the process may have several threads. */
char __libc_single_threaded = 0;

/* glibc 2.36; std::random_device asks it. */
uint32_t arc4random(void);
uint32_t arc4random(void) {
  uint32_t value;
  if (getentropy(&value, sizeof value) != 0) abort();
  return value;
}
