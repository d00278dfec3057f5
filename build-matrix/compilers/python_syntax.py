# SPDX-License-Identifier: Apache-2.0
"""Compiles the Python modules of packages, as a program that imports them will, and keeps nothing. `kiln build` starts this
before its steps:

    python_syntax.py MODULE…

Prints a line for each that cannot be compiled, and ends with 3 if there is one.
"""

import sys
import warnings


def fault(path):
    """Where it is and what it is; empty if there is none."""
    try:
        with open(path, "rb") as file:
            compile(file.read(), path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{path}:{error.lineno or 1}: {error.msg}"
    except (OSError, ValueError, MemoryError, RecursionError) as error:
        return f"{path}: {error or 'is nested too deep'}"
    return ""


warnings.simplefilter("ignore")
faults = [line for line in map(fault, sys.argv[1:]) if line]
print(*faults, f"So says Python {sys.version.split()[0]}", sep="\n")
sys.exit(3 if faults else 0)
