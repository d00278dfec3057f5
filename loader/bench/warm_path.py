#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What get_kernel costs on a warm cache, against what a caller would do by hand: SHA-256 of the same file by OpenSSL and
a bare dlopen of it.

    warm_path.py build/release/bin/warm_path NAME@VERSION cpu|cuda|cold-cuda [SAMPLES]

Each sample is a fresh process, and the two kinds alternate. Also the second call of each process. "cpu" takes the CPU
variant; "cuda" that of GPU 0, in a process that has initialised CUDA as every program that computes there has; with
"cold-cuda" it has not. On a GPU the first call also makes the context and loads the module into it, which a bare dlopen does
not. Prints the figures as JSON, with machine, compiler and commit. Wants KILN_REGISTRY, and KILN_CACHE of its own; the
first run installs. KILN_COMMIT says which commit this is where there is no source.
"""
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys


def lines_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def spread(values):
    values = sorted(values)
    shares = {"median": 0.5, "p20": 0.2, "p80": 0.8}
    return {name: values[int(share * (len(values) - 1) + 0.5)] for name, share in shares.items()} | {"samples": len(values)}


def circumstances(program):
    compiler, build, openssl = lines_of(program, "--build")
    commit = os.environ.get("KILN_COMMIT") or lines_of(
        "git", "-C", str(pathlib.Path(__file__).resolve().parent), "describe", "--always", "--dirty")[0]
    processor = next((line.partition(": ")[2] for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                      if line.startswith("model name")), "unknown")
    return {"processor": processor, "cores": os.cpu_count(), "kernel": platform.release(), "compiler": compiler,
            "build": build, "openssl": openssl, "commit": commit, "date": datetime.date.today().isoformat()}


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    program, package, device, samples = *sys.argv[1:4], int((*sys.argv, "31")[4])
    _, variant, library = lines_of(program, "--kiln", package, device)  # installs, and says which file
    ours, bare = [], []
    for _ in range(samples):
        ours.append([float(word) for word in lines_of(program, "--kiln", package, device)[0].split()])
        bare.append(float(lines_of(program, "--bare", library, device)[0].split()[0]))
    first, by_hand = spread([first for first, _ in ours]), spread(bare)
    print(json.dumps({
        "benchmark": "warm_path", "unit": "us", "package": package, "device": device, "variant": variant,
        "library_bytes": os.path.getsize(library), "first_call": first, "sha256_and_dlopen": by_hand,
        "ratio_to_sha256_and_dlopen": first["median"] / by_hand["median"],
        "repeat_call": spread([repeat for _, repeat in ours]), "machine": circumstances(program)}, indent=2, sort_keys=True))


if __name__ == "__main__":
    main()
