#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A second process on a warm cache: strace shows no network, and no write but to memory files.

Wants KILN_BIN, and KILN_REGISTRY with geglu-mlp@1. Exits with 77 (skipped) where strace cannot trace.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(os.environ["KILN_BIN"])
NETWORK = {"socket", "connect", "sendto", "recvfrom", "sendmsg", "recvmsg", "bind", "listen"}
CHANGES = {"mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "link", "linkat",
           "symlink", "symlinkat", "creat", "truncate", "fallocate", "mknod", "mknodat", "chmod", "fchmod",
           "fchmodat", "chown", "fchown", "fchownat", "utimensat", "setxattr", "fsync", "fdatasync", "sync"}
WRITES = {"write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate", "sendfile", "copy_file_range"}
FLAGS = re.compile(r"O_(WRONLY|RDWR|CREAT|TRUNC|APPEND)")


def calls(trace):
    """(name, arguments) of each call in a trace of `strace -f -y`."""
    for line in trace.splitlines():
        match = re.match(r"(?:\d+ +)?(\w+)\((.*)", line)
        if match:
            yield match[1], match[2]


def offences(trace):
    """What a warm process must not do. A descriptor shows as 5</path>, memory files as </memfd:…>."""
    found = []
    for name, arguments in calls(trace):
        target = re.match(r"\d+<([^>]*)>", arguments)
        place = target[1] if target else ""
        if name in NETWORK or name in CHANGES:
            found.append(f"{name}({arguments}")
        elif name in WRITES and not place.startswith("/memfd:kiln:") and not arguments.startswith(("1<", "2<")):
            found.append(f"{name}({arguments}")
        # The driver opens its devices for writing.
        elif name in ("open", "openat", "openat2") and FLAGS.search(arguments) and '"/dev/nvidia' not in arguments:
            found.append(f"{name}({arguments}")
    return found


class Warm(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)

    def trace(self, *command):
        environment = {k: v for k, v in os.environ.items() if k == "KILN_UNSIGNED" or not k.startswith("KILN_")} | {
            "KILN_CACHE": str(self.work / "cache"), "KILN_REGISTRY": os.environ["KILN_REGISTRY"]}
        trace = self.work / "trace"
        subprocess.run(["strace", "-f", "-y", "-o", trace, *command], env=environment, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return trace.read_text()

    def test_the_second_process_neither_writes_nor_asks_the_network(self):
        # `doctor` is get_kernel; warm_path is get_kernel and nothing else.
        for command in ([BIN / "warm_path", "--kiln", "geglu-mlp@1", "cpu"],
                        [BIN / "kiln", "install", "--quiet", "--device", "cpu", "geglu-mlp@1"],
                        [BIN / "kiln", "path", "--device", "cpu", "geglu-mlp@1"]):
            self.trace(*command)
            second = self.trace(*command)
            self.assertEqual(offences(second), [], command)

    def test_the_check_sees_what_a_cold_process_does(self):
        cold = offences(self.trace(BIN / "warm_path", "--kiln", "geglu-mlp@1", "cpu"))
        for word in ("mkdir", "rename", "fsync", "O_CREAT", "write("):
            self.assertTrue(any(word in each for each in cold), word)

    def test_the_second_process_maps_a_sealed_copy_that_it_hashed(self):
        self.trace(BIN / "warm_path", "--kiln", "geglu-mlp@1", "cpu")
        second = self.trace(BIN / "warm_path", "--kiln", "geglu-mlp@1", "cpu")
        self.assertEqual(second.count("memfd_create("), 1)
        self.assertEqual(second.count("F_ADD_SEALS, F_SEAL_SEAL|F_SEAL_SHRINK|F_SEAL_GROW|F_SEAL_WRITE"), 1)


if __name__ == "__main__":
    try:
        subprocess.run(["strace", "-o", "/dev/null", "true"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: strace cannot trace here: {error}")
        sys.exit(77)
    if not os.path.exists(os.environ["KILN_REGISTRY"]):
        print("skipped: there is no registry")
        sys.exit(77)
    unittest.main()
