/* SPDX-License-Identifier: Apache-2.0
 *
 * Asks libkiln.so for a kernel by a name that is none: the answer shows that it is linked and runs.
 */
#include <kiln/abi.h>
#include <kiln/kiln.h>
#include <stdio.h>

int main(void) {
  printf("Kiln %s, ABI %d.%d\n", kiln_version(), KILN_ABI_MAJOR, KILN_ABI_MINOR);
  return kiln_version()[0] == '\0';
}
