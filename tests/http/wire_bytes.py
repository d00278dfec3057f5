#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes over the wire for one variant of a package, against one archive of all of them.

    wire_bytes KERNELS PACKAGE [--variant cu13.5-sm_90a-x86_64] [--out results/NAME.json]

KERNELS is what `kiln build` wrote, wants KILN_BIN and zstd. A server counts the bodies that `kiln install` gets
of that variant, signed, into an empty cache. Against it stand, for the GPUs of the same processor: the libraries of
all SMs in one tar, by zstd -19 with a window that spans them; the same for the newest CUDA alone; and their layers
as they are published, which are what a registry of one library per SM would send.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "trust")]
from signed_registry import SignedRegistry  # noqa: E402
from faults_test import Counting  # noqa: E402

BIN = pathlib.Path(os.environ["KILN_BIN"])


def archive(folder, variants):
    """Bytes of one tar.zst of the libraries of these variants."""
    files = [str(path.relative_to(folder)) for variant in variants for path in sorted((folder / variant).glob("*.so"))]
    tar = subprocess.run(["tar", "-c", "--sort=name", "--mtime=@0", "-C", folder, *files], check=True,
                         capture_output=True).stdout
    packed = subprocess.run(["zstd", "-q", "-19", "--long=27", "-c"], input=tar, check=True, capture_output=True)
    return len(packed.stdout)


def over_the_wire(folder, package, variant, work):
    registry = work / "registry"
    subprocess.run([BIN / "kiln-registry", "publish", "--quiet", "--registry", registry, folder], check=True,
                   stdout=subprocess.DEVNULL)
    signed = SignedRegistry(registry)
    signed.close()
    layout = json.loads((registry / package / "index.json").read_text())
    version = next(int(tag) for entry in layout["manifests"]
                   if (tag := entry["annotations"]["org.opencontainers.image.ref.name"]).isdigit())
    signed.vouch(signed.index(package, version), package, version)
    (work / "root.json").write_bytes(signed.first_root)
    server = Counting(registry)
    url = f"http://127.0.0.1:{server.port}"
    sm = re.search(r"sm_(\d+)(\d)", variant)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(work), "KILN_OVERRIDE_SM": f"{sm[1]}.{sm[2]}",
                   "KILN_OVERRIDE_CUDA": re.match(r"cu([0-9.]+)", variant)[1]}
    for words in (["trust", "add", url, "--root", work / "root.json"],
                  ["install", f"{package}@{version}", "--registry", url]):
        subprocess.run([BIN / "kiln", *words], env=environment, check=True, capture_output=True)
    server.close()
    pieces = [end - start for each in server.sent.values() for start, end in each]
    layer = (folder / variant / "layer.tar.zst").stat().st_size
    if layer not in pieces:
        sys.exit(f"another variant than {variant} was chosen")
    return {"requests": len(server.asked), "bytes": sum(pieces), "layer": layer}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kernels", type=pathlib.Path)
    parser.add_argument("package")
    parser.add_argument("--variant", default="cu13.5-sm_90a-x86_64")
    parser.add_argument("--out", type=pathlib.Path)
    asked = parser.parse_args()
    folder = asked.kernels / asked.package
    machine = asked.variant.rpartition("-")[2]
    all_of_it = sorted(path.name for path in folder.glob(f"cu*-{machine}"))
    newest = [each for each in all_of_it if each.startswith(asked.variant.partition("-")[0] + "-")]
    with tempfile.TemporaryDirectory() as work:
        wire = over_the_wire(folder, asked.package, asked.variant, pathlib.Path(work))
    fat = {"archive_of_all": archive(folder, all_of_it), "archive_of_newest_cuda": archive(folder, newest),
           "layers_of_all": sum((folder / each / "layer.tar.zst").stat().st_size for each in all_of_it)}
    result = {"schema": "kiln.wire-bytes/1", "date": datetime.date.today().isoformat(),
              "commit": subprocess.run(["git", "-C", HERE, "rev-parse", "HEAD"], check=True, capture_output=True,
                                       text=True).stdout.strip(),
              "machine": platform.machine(), "package": asked.package, "variant": asked.variant,
              "variants": {"all": len(all_of_it), "newest_cuda": len(newest)}, "wire": wire, "instead": fat,
              "times_as_many": {name: round(size / wire["bytes"], 2) for name, size in fat.items()}}
    text = json.dumps(result, indent=1) + "\n"
    print(text, end="")
    if asked.out:
        asked.out.write_text(text)


if __name__ == "__main__":
    main()
