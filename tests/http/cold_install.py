#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cold install against curl and tar of the same bytes from the same nginx.

    cold_install KILN [--rounds 15] [--megabytes 100] [--library FILE] [--scratch FOLDER]
                 [--out results/NAME.json]

Publishes a package with one large file and a small one; the large one is random bytes, which do not
compress, or the first bytes of a real library. A round is one `kiln install` into an empty cache and
the same by curl and tar, in turns that rotate; the numbers are medians. kiln hashes each byte twice
(layer, file) and syncs each file and folder; curl and tar do neither. So two more are measured: the
same with a sync of its files, and what a careful user types, with sha256sum as well.

On a machine that is not quiet, run it as `chrt -f 10 cold_install ...`: the server and all that is
measured then come before other work, alike.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import forge  # noqa: E402


def publish(work, name, library):
    """The package under the URLs of a registry, as plain files; returns the path of its layer."""
    package = forge.Package(work / "registry", name=name,
                            files={"LICENSE": b"x\n", "lib/libsample.so": library})
    package.layer = subprocess.run(["zstd", "-q", "-c"], input=forge.tar(package.files),
                                   stdout=subprocess.PIPE, check=True).stdout
    package.publish()
    layout = json.loads((work / "registry" / name / "index.json").read_text())
    blobs = work / "registry" / name / "blobs/sha256"
    site = work / "www/v2" / name
    for kind in ("manifests", "blobs"):
        (site / kind).mkdir(parents=True)
        for blob in blobs.iterdir():
            os.link(blob, site / kind / f"sha256:{blob.name}")
    index = layout["manifests"][0]["digest"].removeprefix("sha256:")
    os.link(blobs / index, site / "manifests/1")
    return f"v2/{name}/blobs/{forge.digest_of(package.layer)}"


def start_nginx(work):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    temporary = " ".join(f"{name}_temp_path {work}/t_{name};" for name in
                         ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (work / "nginx.conf").write_text(f"""
daemon off; pid {work}/nginx.pid; error_log {work}/error.log; events {{}}
http {{ access_log off; sendfile on; {temporary}
  server {{ listen 127.0.0.1:{port}; root {work}/www; }} }}
""")
    nginx = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    server = subprocess.Popen([nginx, "-e", work / "error.log", "-c", work / "nginx.conf"])
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return server, port
        except OSError:
            time.sleep(0.05)
    sys.exit("nginx does not start: " + (work / "error.log").read_text())


def timed(command, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    start = time.perf_counter()
    subprocess.run(command, shell=True, check=True, cwd=folder, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, env={"PATH": os.environ["PATH"], "HOME": str(folder)})
    return time.perf_counter() - start


def measure(arguments, work, port, name, layer):
    base = f"http://127.0.0.1:{port}"
    kiln = (f"{arguments.kiln} install {name}@1 --quiet --device cpu --registry {base} "
            f"--cache {work}/target/cache")
    curl = f"curl -s -o layer {base}/{layer}"
    check = f"echo {layer.rpartition(':')[2]}  layer | sha256sum -c"
    tar = "tar --zstd -xf layer"
    sync = "sync layer LICENSE lib/libsample.so lib ."
    runs = {"kiln": kiln, "curl_tar": f"{curl} && {tar}",
            "curl_tar_sync": f"{curl} && {tar} && {sync}",
            "curl_sha256sum_tar_sync": f"{curl} && {check} && {tar} && {sync}"}
    seconds = {key: [] for key in runs}
    for number in range(arguments.rounds + 1):
        keys = list(runs)
        for key in keys[number % len(keys):] + keys[:number % len(keys)]:
            took = timed(runs[key], work / "target")
            if number > 0:  # the first round warms the page cache
                seconds[key].append(round(took, 5))
    median = {key: statistics.median(values) for key, values in seconds.items()}
    others = [key for key in runs if key != "kiln"]
    return {"seconds": seconds, "median": {key: round(value, 5) for key, value in median.items()},
            "ratio": {key: round(median["kiln"] / median[key], 3) for key in others},
            "overhead_ms": {key: round(1000 * (median["kiln"] - median[key]), 1)
                            for key in others}}


def first_line(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.split("\n")[0].strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kiln", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--library", type=pathlib.Path, help="instead of random bytes")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--scratch", help="folder of the caches; its disk is what is measured")
    arguments = parser.parse_args()
    here = pathlib.Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        work = pathlib.Path(folder)
        work.chmod(0o755)
        size = arguments.megabytes * 1_000_000
        library = (arguments.library.read_bytes()[:size] if arguments.library
                   else random.Random(size).randbytes(size))
        large = publish(work, "large", library)
        small = publish(work, "small", random.Random(1).randbytes(20_000))
        server, port = start_nginx(work)
        try:
            result = {
                "schema": "kiln.cold-install/2",
                "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
                "commit": first_line("git", "-C", str(here), "rev-parse", "HEAD"),
                "machine": {
                    "cpu": next((line.split(":")[1].strip() for line in open("/proc/cpuinfo")
                                 if line.startswith("model name")), platform.machine()),
                    "cores": os.cpu_count(), "kernel": platform.release(),
                    "file_system": first_line("stat", "-f", "-c", "%T", folder),
                    "scheduling": {os.SCHED_OTHER: "other", os.SCHED_FIFO: "fifo"}.get(
                        os.sched_getscheduler(0), "another"),
                    "load_before": round(os.getloadavg()[0], 2)},
                "versions": {"kiln": first_line(str(arguments.kiln), "--version"),
                             "curl": first_line("curl", "--version"),
                             "tar": first_line("tar", "--version"),
                             "zstd": first_line("zstd", "--version")},
                "megabytes": len(library) / 1e6,
                "layer_bytes": (work / "www" / large).stat().st_size,
                "library": str(arguments.library.name) if arguments.library else "random bytes",
                "rounds": arguments.rounds,
                "large": measure(arguments, work, port, "large", large),
                "small": measure(arguments, work, port, "small", small),
            }
        finally:
            server.terminate()
            server.wait()
    text = json.dumps(result, indent=1) + "\n"
    if arguments.out:
        arguments.out.write_text(text)
    for size in ("large", "small"):
        print(f"{size}: {result[size]['median']}\n  ratio {result[size]['ratio']}\n"
              f"  overhead in ms {result[size]['overhead_ms']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
