#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What trust costs in a large registry: made data, real commands, a server that counts.

    scale.py KILN_REGISTRY KILN WRITE_FIXTURE [--packages N] [--versions N] [--rounds N] [--out FILE]

Of N packages with N versions each, all but one are made of one index with another name and version in it:
enough to be signed, and never installed. Fails where a bound is exceeded, where python-tuf disagrees, or where
a refresh asks for more than it needs.
"""

import argparse
import datetime
import hashlib
import http.server
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from tuf.ngclient import Updater

REAL = "acme-op"  # can be installed; made by the fixture
SOURCE = pathlib.Path(__file__).resolve().parents[2]
CAPS = {"manifest": 4 << 20, "snapshot": 2_000_000, "targets": 4 << 20}

sys.path.insert(0, str(SOURCE / "tests/publish"))
from oci_server import OciServer  # noqa: E402


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Layout:
    """An OCI layout on the disk, as its readers see it."""

    def __init__(self, folder):
        self.folder = folder

    def tags(self):
        listed = json.loads((self.folder / "index.json").read_bytes())["manifests"]
        return {each["annotations"]["org.opencontainers.image.ref.name"]: each for each in listed if "annotations" in each}

    def blob(self, digest):
        path = self.folder / "blobs/sha256" / digest.removeprefix("sha256:")
        return path.read_bytes() if path.exists() else None


class Server:
    """The registry's folder at the URLs of the OCI API, and its metadata at those of a TUF repository."""

    def __init__(self, registry):
        self.registry, self.asked = registry, []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def do_GET(self):
                kind, body = server.answer(self.path)
                if "kiln.tuf" in self.path or self.path.startswith("/metadata"):
                    server.asked.append((self.path, len(body or b"")))
                self.send_response(200 if body is not None else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path):
        words = path.strip("/").split("/")
        if words[0] == "metadata":
            return "application/json", self.titled(words[1])
        if words[0] == "targets":  # targets/<package>/<sha256>.<version>
            return "application/octet-stream", Layout(self.registry / words[1]).blob(words[2].split(".")[0])
        layout = Layout(self.registry / words[1])
        if len(words) != 4 or not (layout.folder / "index.json").exists():
            return "text/plain", None
        reference = words[3]
        if words[2] == "manifests" and not reference.startswith("sha256:"):
            tag = layout.tags().get(reference)
            return (tag["mediaType"], layout.blob(tag["digest"])) if tag else ("text/plain", None)
        body = layout.blob(reference)
        kind = "application/octet-stream" if words[2] == "blobs" else json.loads(body)["mediaType"]
        return kind, body

    def titled(self, title):
        layout = Layout(self.registry / "kiln.tuf")
        manifest = json.loads(layout.blob(layout.tags()["latest"]["digest"]))
        for layer in manifest["layers"]:
            if title in layer["annotations"].values():
                return layout.blob(layer["digest"])
        return None

    def taken(self):
        """Requests for metadata and their bytes since the last call."""
        asked, self.asked = self.asked, []
        return {"requests": len(asked), "bytes": sum(size for _, size in asked)}


class Scale:
    def __init__(self, options, work):
        self.options, self.work, self.registry = options, work, work / "registry"
        self.environment = {"HOME": str(work), "PATH": "/usr/bin:/bin", "KILN_CACHE": str(work / "cache")}
        self.results = {}
        self.costs = None

    def run(self, program, *words, name=None, **environment):
        """Its output; under `name`, what it cost."""
        begin = time.monotonic()
        child = subprocess.Popen([program, *map(str, words)], stdout=subprocess.PIPE, text=True,
                                 env=self.environment | environment)
        out = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            sys.exit(f"{words}: exit code {child.returncode}")
        self.costs = {"seconds": round(time.monotonic() - begin, 4),
                      "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 4), "peak_mb": usage.ru_maxrss // 1024}
        if name:
            self.results[name] = dict(self.costs)
        return out

    def command(self, *words, **how):
        return json.loads(self.run(self.options.kiln_registry, *words, "--json", **how))

    def signing(self, command, *words, name=None):
        keys = ("--key", self.work / "targets", "--key", self.work / "online")
        return self.command(command, *words, "--registry", self.registry, *keys, name=name)

    def make_keys(self):
        for role in ("root", "targets", "online"):
            self.command("key", self.work / role)
        self.root = self.work / "root.json"
        self.command("init", "--root-key", self.work / "root.pub", "--targets-key", self.work / "targets.pub",
                     "--online-key", self.work / "online.pub", "--out", self.root)
        self.command("sign", self.root, "--key", self.work / "root")

    def make_version(self, package, versions):
        """A layout whose versions are the real index under another name."""
        folder = self.registry / package
        (folder / "blobs/sha256").mkdir(parents=True, exist_ok=True)
        (folder / "oci-layout").write_bytes(self.marker)
        tags = []
        for version in versions:
            data = self.index.replace(f'"{REAL}"'.encode(), f'"{package}"'.encode())
            data = data.replace(b'image.version":"1"', f'image.version":"{version}"'.encode())
            (folder / "blobs/sha256" / sha256(data)).write_bytes(data)
            tags.append({"annotations": {"org.opencontainers.image.ref.name": str(version)},
                         "digest": f"sha256:{sha256(data)}", "size": len(data),
                         "mediaType": "application/vnd.oci.image.index.v1+json"})
        (folder / "index.json").write_text(json.dumps({"manifests": tags, "schemaVersion": 2,
                                                       "mediaType": "application/vnd.oci.image.index.v1+json"}))

    def make_registry(self):
        subprocess.run([self.options.write_fixture, self.work / "built"], check=True)
        self.command("publish", "--registry", self.registry, "-q", self.work / "built/acme")
        self.make_keys()
        self.signing("sign", "--root", self.root)
        layout = Layout(self.registry / REAL)
        self.index = layout.blob(layout.tags()["1"]["digest"])
        self.marker = (layout.folder / "oci-layout").read_bytes()
        for i in range(self.options.packages - 1):
            self.make_version(f"made-{i}", range(1, self.options.versions + 1))
        done = self.signing("sign", name="sign_all_at_once")
        assert len(done["changed"]) == (self.options.packages - 1) * self.options.versions, len(done["changed"])
        self.versions = done["versions"]

    # ---- clients ----

    def ask(self, server, **environment):
        """What a client does that wants the newest index of a version."""
        (self.work / "kiln.lock").unlink(missing_ok=True)
        self.run(self.options.kiln, "lock", f"{REAL}@1", "--registry", server.url, "--lock", self.work / "kiln.lock",
                 **environment)

    def measure_client(self, server, name, prepare):
        rounds = []
        for _ in range(self.options.rounds):
            prepare()
            server.taken()
            self.ask(server)
            rounds.append(server.taken() | self.costs)
        assert len({(each["requests"], each["bytes"]) for each in rounds}) == 1, rounds
        self.results[name] = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}

    def forget(self):
        shutil.rmtree(self.work / "cache", ignore_errors=True)

    def forget_packages(self):
        for name in ("unpacked", "blobs", "refs", "installed"):
            shutil.rmtree(self.work / "cache" / name, ignore_errors=True)

    def measure_clients(self, server):
        self.run(self.options.kiln, "trust", "add", server.url, "--root", self.root)
        self.measure_client(server, "cold_refresh", self.forget)
        self.measure_client(server, "warm_refresh", self.forget_packages)
        # The same without trust, to see what of the time is its.
        settings = self.work / "none/config.json"
        settings.parent.mkdir()
        settings.write_text('{"schema": "kiln.settings/1"}')
        unsigned = {"KILN_CONFIG": str(settings), "KILN_UNSIGNED": server.url}
        rounds = []
        for _ in range(self.options.rounds):
            self.forget_packages()
            self.ask(server, **unsigned)
            rounds.append(dict(self.costs))
        self.results["unsigned"] = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}

    def check_python_tuf(self, server):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        server.taken()
        updater = Updater(str(folder / "metadata"), f"{server.url}/metadata", str(folder), f"{server.url}/targets",
                          bootstrap=self.root.read_bytes())
        updater.refresh()
        last = self.options.packages - 2
        for package, version in ((REAL, 1), ("made-0", 1), (f"made-{last}", self.options.versions)):
            target = updater.get_targetinfo(f"{package}/{version}")
            found = pathlib.Path(updater.download_target(target)).read_bytes()
            tag = Layout(self.registry / package).tags()[str(version)]
            assert f"sha256:{sha256(found)}" == tag["digest"], package
        assert updater.get_targetinfo("made-0/0") is None

    # ---- the publisher ----

    def blobs(self):
        return {path.name: path.stat().st_size for path in (self.registry / "kiln.tuf/blobs/sha256").iterdir()}

    def measure_publish(self):
        """One more version, looking at all packages and at its own."""
        for name, version, words in (("sign_one_more", 1, ()), ("sign_one_more_only", 2, ("--only", "made-0"))):
            self.make_version("made-0", range(1, self.options.versions + version + 1))
            before = self.blobs()
            done = self.signing("sign", *words, name=name)
            assert done["changed"] == [f"made-0/{self.options.versions + version}"], done["changed"]
            new = [size for blob, size in self.blobs().items() if blob not in before]
            self.results[name] |= {"documents": len(new), "bytes": sum(new)}

    def measure_refresh_after_publish(self, server):
        server.taken()
        self.forget_packages()
        self.ask(server)
        self.results["refresh_after_publish"] = server.taken() | self.costs

    def stock(self, server, package):
        """Has the indexes on the server without a push: what is measured is what the metadata costs."""
        layout = Layout(self.registry / package)
        for tag in layout.tags().values():
            server.documents[package, tag["digest"]] = (tag["mediaType"], layout.blob(tag["digest"]))

    def measure_push(self):
        server = OciServer(self)
        for i in range(self.options.packages - 1):
            self.stock(server, f"made-{i}")
        url = getattr(server, "url")
        push = ("push", "--registry", self.registry, "--to", url, REAL, "-q")
        for name, last in (("push_first", 0), ("push_one_more", 3)):
            if last:
                self.make_version("made-0", range(1, self.options.versions + last + 1))
                self.signing("sign", "--only", "made-0")
                self.stock(server, "made-0")
            before = len(server.requests)
            self.command(*push, name=name)
            mine = [request for request in server.requests[before:] if "kiln.tuf" in request.path]
            sent = [request for request in mine if request.method == "PUT"]
            self.results[name] |= {"requests": len(mine), "documents": len(sent),
                                   "bytes": sum(len(request.body) for request in sent)}

    def addCleanup(self, *_):  # noqa: N802
        """OciServer asks its test for this; this process ends with it."""

    def measure_documents(self):
        layout = Layout(self.registry / "kiln.tuf")
        tag = layout.tags()["latest"]
        layers = json.loads(layout.blob(tag["digest"]))["layers"]
        sizes = {title.split(".", 1)[1]: layer["size"] for layer in layers for title in layer["annotations"].values()}
        found = {"manifest": tag["size"], "snapshot": sizes["snapshot.json"], "targets": sizes["targets.json"]}
        self.results["document_bytes"] = found | {"all": sum(sizes.values())}
        for name, size in found.items():
            assert size < CAPS[name], f"{name} has {size} bytes, of which clients read at most {CAPS[name]}"

    def check_bounds(self):
        """What does not depend on the machine."""
        found = self.results
        cold, warm = found["cold_refresh"], found["warm_refresh"]
        assert cold["requests"] <= 4, cold  # manifest, snapshot, targets; small ones are in the manifest
        assert warm["requests"] == 1, warm
        assert found["sign_one_more"]["documents"] <= 4, found["sign_one_more"]  # targets, snapshot, timestamp, manifest
        assert found["push_one_more"]["documents"] <= 4, found["push_one_more"]
        assert found["refresh_after_publish"]["requests"] <= 3, found["refresh_after_publish"]

    def measure(self):
        self.make_registry()
        server = Server(self.registry)
        self.measure_clients(server)
        self.check_python_tuf(server)
        self.measure_publish()
        self.measure_refresh_after_publish(server)
        self.measure_push()
        self.measure_documents()
        self.check_bounds()


def machine():
    model = [line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]
    return {"cpu": model[0] if model else platform.machine(), "cores": os.cpu_count(), "kernel": platform.release(),
            "load_before": round(os.getloadavg()[0], 2)}


def main():
    parser = argparse.ArgumentParser()
    for name in ("kiln_registry", "kiln", "write_fixture"):
        parser.add_argument(name, type=os.path.abspath)
    parser.add_argument("--packages", type=int, default=1_000)
    parser.add_argument("--versions", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, help="folder for the made registry; default: a temporary one")
    options = parser.parse_args()
    here = machine()
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        scale = Scale(options, pathlib.Path(folder))
        scale.measure()
        print(json.dumps(scale.results, indent=1))
        if options.out:
            commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=SOURCE, capture_output=True, text=True, check=True)
            options.out.write_text(json.dumps({
                "schema": "kiln.trust-scale/1", "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
                "commit": commit.stdout.strip(), "machine": here, "packages": options.packages,
                "versions_each": options.versions, "versions": scale.versions, "rounds": options.rounds,
                "results": scale.results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
