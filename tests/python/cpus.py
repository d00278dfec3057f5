# SPDX-License-Identifier: Apache-2.0
"""How many CPUs a call may use, and the threads of a process, for tests that count threads."""

import os
import pathlib

# For a program in a process of its own. settled(count) waits until as many threads are left, as what get_kernel started
# has ended.
COUNT = """
import os, time
def threads():
    return len(os.listdir('/proc/self/task'))
def settled(count):
    end = time.monotonic() + 30
    while threads() > count and time.monotonic() < end: time.sleep(0.01)
    return threads()
"""


def allowed_cpus():
    """The machine's, no more than the quotas of this process's control groups."""
    least = os.cpu_count() or 1
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        root = pathlib.Path("/sys/fs/cgroup")
        if controllers:
            root /= controllers if (root / controllers).is_dir() else "cpu"
        inside = root / group.lstrip("/")
        for folder in (inside, *inside.parents):
            for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
                try:
                    quota, period = " ".join((folder / name).read_text() for name in names).split()
                except OSError:
                    continue
                if quota != "max" and int(quota) > 0:
                    least = min(least, -(-int(quota) // int(period)))
    return least
