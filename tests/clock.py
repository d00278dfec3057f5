# SPDX-License-Identifier: Apache-2.0
"""Words before a command, which then runs at another time: libtest_clock.so (clock.c) in the folder of
the binaries."""

import os
import pathlib


def later(seconds, binaries=None):
    """The clock is so many seconds ahead, or behind where they are negative. Default: $KILN_BIN."""
    library = pathlib.Path(binaries or os.environ["KILN_BIN"]).resolve() / "libtest_clock.so"
    if not library.is_file():  # ld.so would only warn
        raise FileNotFoundError(f"{library}: build it, target test_clock")
    return ("env", f"LD_PRELOAD={library}", f"TEST_CLOCK_SHIFT={int(seconds)}")
