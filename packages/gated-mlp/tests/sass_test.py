#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the machine code of the GPU kernels, without a GPU.

There must be no loop of votes around a copy, no GPU-wide fence before a copy, no spill and no wgmma that waits for the
one before it. The tensor core instructions must be those that the tile's shape needs.

Spills and waiting are read from the report that ptxas wrote beside every cubin. Disassembled are the cubins of sm_90a, which alone
have copies and fences to look for, and the portable ones of one cell: the others have the same sources.

    tests/sass_test.py KERNELS --nvdisasm build/toolchains/bin/nvdisasm [--folders gated-mlp geglu-mlp swiglu-mlp] [--counts FILE]

KERNELS is what `kiln build --out` wrote. --counts writes the instruction counts of each sm_90a kernel to FILE."""
import argparse
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys

LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(@\S+ )?([A-Z][\w.]*)(?:.*`\(([^)]+)\))?")
COPIES = ("UTMALDG", "UBLKCP")
FENCES = ("MEMBAR.ALL.GPU", "MEMBAR.SC.GPU", "MEMBAR.ALL.SYS", "MEMBAR.SC.SYS")

# ptxas 12.9 and 13.5 do not fit these into 128 registers and spill 20 bytes per thread, in 3 of 600 instructions.
KNOWN_SPILLS = [(f"cu{toolkit}-sm_120", f"gated_{dtype}_decode{warps}")
                for toolkit in ("12.9", "13.5") for dtype in ("bf16", "f16") for warps in (4, 8)]


class Kernel:
    """The instructions of one kernel, and which may run after which."""

    def __init__(self):
        self.names, self.conditional, self.targets, self.labels = [], [], [], {}

    def add(self, line):
        if match := LINE.match(line):
            self.names.append(match[2])
            self.conditional.append(match[1] is not None)
            self.targets.append(match[3])
        elif line.startswith(".L"):
            self.labels[line.strip().rstrip(":")] = len(self.names)

    def places(self, *names):
        return [i for i, name in enumerate(self.names) if name.startswith(names)]

    def after(self, place):
        """The instructions that may run next. BSSY does not jump: it names the label of its BSYNC."""
        jumps = self.targets[place] is not None and not self.names[place].startswith("BSSY")
        if jumps:
            yield self.labels[self.targets[place]]
        ends = self.names[place] == "EXIT" or (jumps and self.names[place].startswith("BRA"))
        if self.conditional[place] or not ends:
            yield place + 1

    def reaches(self, place, goals):
        seen, open_places = set(), [place]
        while open_places:
            for following in self.after(open_places.pop()):
                if following in goals:
                    return True
                if following < len(self.names) and following not in seen:
                    seen.add(following)
                    open_places.append(following)
        return False


def kernels_of(text):
    """Kernel name -> its instructions, in address order."""
    kernels, current = {}, None
    for line in text.splitlines():
        if line.startswith(".text."):
            current = kernels.setdefault(line[len(".text."):].rstrip(":"), Kernel())
        elif current is not None:
            current.add(line)
    return kernels


def counts_of(kernel):
    copies = kernel.places(*COPIES)
    products, spills = kernel.places("HGMMA", "HMMA"), kernel.places("STL", "LDL")
    return {"instructions": len(kernel.names), "hgmma": len(kernel.places("HGMMA")),
            "hmma": len(kernel.places("HMMA")), "copies": len(copies),
            "vote_loops": len(kernel.places("BRA.U.ANY")),
            "fences_before_copies": sum(kernel.reaches(fence, set(copies)) for fence in kernel.places(*FENCES)),
            "spills": len(spills), "spills_before_products": sum(spill < max(products, default=0) for spill in spills)}


def reported(report):
    """Kernel name -> its bytes of stack frame, spill stores and spill loads, by ptxas."""
    bytes_of = {}
    kernel = None
    for line in report.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = match[1]
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            bytes_of[kernel] = sum(map(int, match.groups()))
    return bytes_of


def serialized(report):
    """The kernels whose wgmma ptxas made wait for each other: for registers that something else writes."""
    return re.findall(r"wgmma.* are serialized .* in the function '(\w+)'", report)


def expected_hgmma(kernel):
    """HGMMA per stage of the ring: four of k = 16 for each 64 rows of a warpgroup, or for each block of k."""
    family, _, _, shape, *_ = kernel.split("_")  # and "small": a stream kernel of less memory
    rows, columns = map(int, shape.split("x"))
    if family == "stream":
        return 4 * (1 if columns >= 96 else 2 if columns >= 48 else 4 if columns >= 24 else 8)
    if family == "decode":  # 192x224 in halves of the columns
        return 8 if rows == 256 or (rows, columns) == (192, 224) else 4
    return 4 if columns in (224, 256) else 8


def failures_of(cell, kernel, counts):
    if counts["spills"] and (cell, kernel) not in KNOWN_SPILLS:
        yield f"{counts['spills']} instructions of spills (STL, LDL), expected none"
    if counts["spills_before_products"]:
        yield f"{counts['spills_before_products']} of its spills are not behind the last multiplication"
    if kernel.startswith(("prefill", "decode", "stream", "gradients_gated", "gradients_tokens", "gradients_weights")):
        if counts["hgmma"] != expected_hgmma(kernel):
            yield f"{counts['hgmma']} HGMMA, expected {expected_hgmma(kernel)}"
        if not counts["copies"]:
            yield "no copy by the copy engine (UTMALDG, UBLKCP)"
        if counts["vote_loops"]:
            yield f"{counts['vote_loops']} loops of votes (BRA.U.ANY), expected none: issue copies by an elected thread"
        if counts["fences_before_copies"]:
            yield f"{counts['fences_before_copies']} GPU-wide fences ({FENCES[0]}) before a copy, expected none"
    elif kernel.startswith(("gated", "plain")) and not counts["hmma"]:
        yield "no HMMA"


def disassembled(nvdisasm, cubin):
    return kernels_of(subprocess.run([nvdisasm, "-c", cubin], check=True, capture_output=True, text=True).stdout)


def is_disassembled(cubin, cubins):
    if cubin.parts[-2].endswith("sm_90a"):
        return True
    cells = sorted({one.parts[-2] for one in cubins if one.parts[-4] == cubin.parts[-4]} - {
        one.parts[-2] for one in cubins if one.parts[-2].endswith("sm_90a")})
    return cubin.parts[-2] == cells[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", type=pathlib.Path)
    parser.add_argument("--nvdisasm", type=pathlib.Path, required=True)
    parser.add_argument("--folders", nargs="+", default=["gated-mlp", "geglu-mlp", "swiglu-mlp"],
                        help="of the work folder: an image that reads no file of a package is the family's")
    parser.add_argument("--counts", type=pathlib.Path)
    arguments = parser.parse_args()
    if not arguments.nvdisasm.exists():
        print(f"skipped: no {arguments.nvdisasm}; run ci/toolchains")
        sys.exit(77)

    cubins = [cubin for folder in arguments.folders
              for cubin in sorted(arguments.kernels.glob(f".work/{folder}/device/*/*.cubin"))]
    if not cubins:
        sys.exit(f"sass: no cubin of {', '.join(arguments.folders)} below {arguments.kernels}; build them first")
    failed = seen = 0

    def fail(cubin, kernel, failure):
        nonlocal failed
        failed += 1
        print(f"{cubin.parts[-4]} {cubin.parts[-2]} {kernel}: {failure}")

    for cubin in cubins:
        report = cubin.with_suffix(".ptxas.txt").read_text()
        for kernel in serialized(report):
            fail(cubin, kernel, "its wgmma wait for each other, expected them in flight")
        spilled = reported(report)
        if not spilled:
            sys.exit(f"sass: ptxas reports no kernel of {cubin}")
        seen += len(spilled)
        for kernel, size in spilled.items():
            if size and (cubin.parts[-2], kernel) not in KNOWN_SPILLS:
                fail(cubin, kernel, f"{size} bytes of stack frame and spills, expected none")

    read = [cubin for cubin in cubins if is_disassembled(cubin, cubins)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda cubin: disassembled(arguments.nvdisasm, cubin), read))
    counted = {}
    for cubin, kernels in zip(read, found):
        package, cell = cubin.parts[-4], cubin.parts[-2]
        if set(kernels) != set(reported(cubin.with_suffix(".ptxas.txt").read_text())):
            sys.exit(f"sass: nvdisasm and ptxas name other kernels in {cubin}")
        for kernel, code in kernels.items():
            counts = counts_of(code)
            if cell.endswith("sm_90a"):
                counted.setdefault(f"{package} {cell}", {})[kernel] = counts
            for failure in failures_of(cell, kernel, counts):
                fail(cubin, kernel, failure)
    print(f"sass: {seen} kernels in {len(cubins)} cubins, of which {len(read)} were disassembled; {failed} failures")
    if arguments.counts:
        arguments.counts.write_text(json.dumps(counted, indent=1) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
