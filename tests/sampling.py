# SPDX-License-Identifier: Apache-2.0
"""A test that tries every point of many (each request at which to kill, each member to spoil) takes a
fixed share of them in a normal run, and all of them with KILN_EXHAUSTIVE=1 in the environment. KILN_SHARE=2: half of
that share."""

import os

SHARE = int(os.environ.get("KILN_SHARE", "1"))
EXHAUSTIVE = os.environ.get("KILN_EXHAUSTIVE", "") not in ("", "0")


def every_nth(points, n, always=()):
    """Each nth of the points, and those that are always tried; all of them in an exhaustive run."""
    points = list(points)
    if EXHAUSTIVE:
        return points
    return [point for at, point in enumerate(points) if at % (n * SHARE) == 0 or point in always]
