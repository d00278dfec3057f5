# SPDX-License-Identifier: Apache-2.0
"""Runs triton_step.py with the same arguments, and tells what its message leaves out: Triton's error names the kernel's
call of a function, and what failed in there is its cause. triton_step.py decides what an image is, so its bytes are in
every build id and thereby in every record; what is only said belongs here."""

import importlib
import sys

try:
    importlib.import_module("triton_step")  # which runs it
except SystemExit as end:
    print(end.code, file=sys.stderr)
    cause = getattr(end.__context__, "__cause__", None)
    while cause is not None:
        print(f"{type(cause).__name__}: {cause}", file=sys.stderr)
        cause = cause.__cause__
    sys.exit(1)
