/* SPDX-License-Identifier: Apache-2.0
 *
 * The sample package, which tells when it is loaded: it makes the file that $KILN_MARKER names.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "sample_package.c"

__attribute__((constructor)) static void mark(void) {
  const char* path = getenv("KILN_MARKER");
  if (path != NULL) close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}
