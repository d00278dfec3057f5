#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs what ci/package made on bare systems, as a user would, and computes a layer on each.

    systems PACKAGES [--registry DIR] [--suites bookworm,trixie] [--ways debs,tar,wheel,container] [--record]

A system is the smallest that debootstrap makes of a release: apt, a shell and the C library. It is made
once and kept in PACKAGES/roots; every way begins with a fresh copy, in which steps run by chroot. Of a release that this
debootstrap does not know, put SUITE.tar there: of Ubuntu 24.04, noble.tar, with the components main and universe. A folder with a
registry of geglu-mlp is copied in, and what ci/kernels makes of it, signed by keys that live as long as the test.
With the tar, docs/AIR_GAP.md is carried out, too, on a second system without a network. --record writes ci/results/install.json: of each step the seconds and the
bytes that apt fetched; ci/figures states them in the documents. Needs root and Debian's archive.

Container: ci/Containerfile, built by buildah on that system in place of the base image that it names.
"""

import argparse
import contextlib
import datetime
import http.server
import json
import os
import pathlib
import platform
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
               "DEBIAN_FRONTEND": "noninteractive", "LANG": "C.UTF-8", "KILN_REGISTRY": "/registry"}
INSTALL = "apt-get install -y -qq --no-install-recommends -o APT::Keep-Downloaded-Packages=true"
TRY = "kiln trust add /registry --unsigned && kiln install geglu-mlp@1 --device cpu"
EXAMPLE = "cmake -S /example -B /tmp/build {} && cmake --build /tmp/build && /tmp/build/geglu_mlp_example 64 96 160"
# C++ by pkg-config, and C: tests/consumer/components asks libkiln.so.
PKG_CONFIG = ("g++ -std=c++20 -O2 /example/main.cpp $(pkg-config --cflags --libs kiln-cpp) -o /tmp/cpp && /tmp/cpp 64 96 160"
              " && cc /c/main.c $(pkg-config --cflags --libs kiln) -o /tmp/c && /tmp/c")
# A publisher's commands that need md4c and cpp-httplib. Bounded, and no server is left behind: it would hold the test.
SERVE = """
cp -r /registry /tmp/registry
kiln registry describe geglu-mlp /card.md --registry /tmp/registry
kiln registry site /tmp/site --registry /tmp/registry
grep -q QuACK /tmp/site/packages/geglu-mlp/index.html
kiln registry serve --quiet --registry /tmp/registry >/tmp/url 2>/tmp/log &
trap "kill $!" EXIT
for each in $(seq 100); do [ -s /tmp/url ] || sleep 0.1; done
KILN_REGISTRY=$(cat /tmp/url) KILN_UNSIGNED=http://127.0.0.1 KILN_CACHE=/tmp/served kiln install geglu-mlp@1 --device cpu
"""

NOT_FOUND, NETWORK = 4, 5  # exit codes of kiln
CERTIFICATES = ["etc/ssl/certs/ca-certificates.crt", "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
                "etc/pki/tls/certs/ca-bundle.crt", "etc/ssl/ca-bundle.pem", "etc/ssl/cert.pem"]

# With the package of kernels: a user without settings who names no registry.
PACKAGED = "unset KILN_REGISTRY; export HOME=/tmp/nobody"

# Way -> its steps: a name, and a command for the shell.
WAYS = {
    "debs": [
        ("the command", f"{INSTALL} /packages/kiln_*.deb"),
        ("a kernel", TRY),
        ("a compiler", f"{INSTALL} g++ cmake make pkg-config"),
        ("libkiln-dev", f"{INSTALL} /packages/libkiln0_*.deb /packages/libkiln-dev_*.deb"),
        ("a layer from C++, by CMake", EXAMPLE.format("")),
        ("a layer from C++ and a call from C, by pkg-config", PKG_CONFIG),
        ("a card, a site and a server", SERVE),
        ("kiln-kernels, no settings", f"{INSTALL} /packages/kernels/kiln-kernels_*_all.deb && {PACKAGED}"
                                      " && kiln install geglu-mlp@1 --device cpu && /tmp/cpp 64 96 160"),
        ("removal", "apt-get purge -y -qq kiln libkiln0 libkiln-dev kiln-kernels"
                    " && ! ls /usr/bin/kiln* /usr/include/kiln /usr/share/kiln 2>/dev/null"),
    ],
    "tar": [
        ("the command", "mkdir /opt/kiln && gzip -dc /packages/kiln-*-linux-x86_64.tar.gz | tar -xf - --strip-components=1"
                        " -C /opt/kiln && ln -s /opt/kiln/bin/kiln /usr/local/bin/"),
        ("a kernel", TRY),
        ("a compiler", f"{INSTALL} g++ cmake make pkg-config"),
        ("a layer from C++, by CMake", EXAMPLE.format("-DCMAKE_PREFIX_PATH=/opt/kiln")),
        ("a layer from C++ and a call from C, by pkg-config",
         f"export PKG_CONFIG_PATH=/opt/kiln/lib/pkgconfig LD_LIBRARY_PATH=/opt/kiln/lib; {PKG_CONFIG}"),
        ("a card, a site and a server", SERVE),
        ("kiln-kernels, no settings",
         "gzip -dc /packages/kernels/kiln-kernels-*.tar.gz | tar -xf - --strip-components=1 -C /opt/kiln"
         f" && {PACKAGED} && kiln install geglu-mlp@1 --device cpu"),
    ],
    "wheel": [
        ("Python", f"{INSTALL} python3-venv python3-numpy"),
        ("the wheel", "python3 -m venv --system-site-packages /venv && /venv/bin/pip install -q --no-index"
                      " /packages/kiln_hub-*_x86_64.whl"),
        ("a kernel", f"PATH=/venv/bin:$PATH; {TRY}"),
        ("a layer from Python", "/venv/bin/python /user.py"),
        ("kiln-kernels, no settings", "/venv/bin/pip install -q --no-index --no-deps /packages/kernels/kiln_kernels-*.whl"
                                      f" && {PACKAGED} && /venv/bin/python /user.py"),
    ],
}


def run_in(root, command, environment):
    """What the command printed; ends the test, with it, if the command fails."""
    done = subprocess.run(["chroot", root, "sh", "-ec", command], env=environment, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"systems: exit status {done.returncode} of {command}\n{done.stdout[-4000:]}")
    return done.stdout


def base(suite, kept):
    """The tar of a bare system."""
    archive = kept / f"{suite}.tar"
    if archive.exists():
        return archive
    print(f"systems: debootstrap {suite}", flush=True)
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept) as folder:
        root = pathlib.Path(folder) / "root"
        subprocess.run(["debootstrap", "--variant=minbase", suite, root], check=True, stdout=subprocess.DEVNULL)
        # The package lists of debootstrap: the steps fetch none, so that their bytes are those of packages.
        run_in(root, "apt-get update -qq && apt-get clean", ENVIRONMENT)
        partial = archive.with_suffix(".partial")
        subprocess.run(["tar", "-C", root, "--one-file-system", "-cf", partial, "."], check=True)
        partial.rename(archive)
    return archive


@contextlib.contextmanager
def signed_kernels(packages, registry):
    """A folder with what ci/kernels makes of the registry, and the root that vouches for it."""
    (tar,) = (file for file in packages if file.name.endswith("-linux-x86_64.tar.gz"))
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        subprocess.run(["tar", "-C", place, "--strip-components=1", "-xf", tar], check=True)
        shutil.copytree(registry, place / "registry")

        def sign(*words):
            subprocess.run([place / "bin/kiln", "registry", *words], check=True, cwd=place, stdout=subprocess.DEVNULL)

        for key in ("root", "targets", "online"):
            sign("key", key)
        sign("init", "--root-key", "root.pub", "--targets-key", "targets.pub", "--online-key", "online.pub", "--out", "root.json")
        sign("sign", "root.json", "--key", "root")
        sign("sign", "--registry", "registry", "--root", "root.json", "--key", "targets", "--key", "online")
        subprocess.run([ROOT / "ci/kernels", place / "registry", place / "root.json", place / "kernels"], check=True,
                       stdout=subprocess.DEVNULL)
        shutil.copy(place / "root.json", place / "kernels")
        yield place / "kernels"


@contextlib.contextmanager
def system(archive, packages, registry, kernels):
    """A fresh copy with /proc and what the steps use; gone afterwards."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        root = pathlib.Path(folder)
        subprocess.run(["tar", "-C", root, "-xf", archive], check=True)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        shutil.copytree(registry, root / "registry")
        shutil.copytree(ROOT / "packages/geglu-mlp/example", root / "example")
        shutil.copytree(ROOT / "tests/consumer/components", root / "c")
        shutil.copy(HERE / "user.py", root / "user.py")
        shutil.copy(ROOT / "packages/geglu-mlp/CARD.md", root / "card.md")
        (root / "packages").mkdir()
        for file in packages:
            shutil.copy(file, root / "packages")
        shutil.copytree(kernels, root / "packages/kernels")
        subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
        try:
            yield root
        finally:
            subprocess.run(["umount", root / "proc"], check=True)


def fetched_bytes(root):
    return sum(file.stat().st_size for file in (root / "var/cache/apt/archives").glob("*.deb"))


def carry_out(root, steps, environment):
    done = []
    for name, command in steps:
        before, began = fetched_bytes(root), time.monotonic()
        output = run_in(root, command, environment)
        seconds = time.monotonic() - began
        done.append({"name": name, "seconds": round(seconds, 1), "apt_bytes": fetched_bytes(root) - before})
        last = output.strip().splitlines()[-1:] or [""]
        print(f"  {seconds:6.1f} s  {done[-1]['apt_bytes'] / 1e6:6.1f} MB  {name}: {last[0][:110]}", flush=True)
    return done


def run_container(archive, packages, registry):
    """ci/Containerfile, built by buildah on the bare system in place of its base, and its command as its user."""
    (tar,) = (file for file in packages if file.name.endswith("-linux-x86_64.tar.gz"))
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        place = pathlib.Path(folder)
        context = place / "context/build/package"
        context.mkdir(parents=True)
        shutil.copy(tar, context)
        # The vfs driver and chroot need nothing of the kernel: the test runs in a container, too.
        tool = ["buildah", "--root", place / "storage", "--runroot", place / "run", "--storage-driver", "vfs"]
        done = []

        def buildah(verb, *words, step=None):
            began = time.monotonic()
            isolation = ["--isolation", "chroot"] if verb in ("build", "run") else []
            command = [*tool, verb, *isolation, *words]
            result = subprocess.run(command, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if result.returncode != 0:
                sys.exit(f"systems: exit status {result.returncode} of buildah {verb}\n{result.stdout[-4000:]}")
            text = result.stdout.strip()
            if step:
                done.append({"name": step, "seconds": round(time.monotonic() - began, 1)})
                print(f"  {done[-1]['seconds']:6.1f} s             {step}: {text.splitlines()[-1][:110]}", flush=True)
            return text

        try:
            bare = buildah("from", "scratch")
            buildah("add", bare, archive, "/")
            buildah("config", "--env", f"PATH={ENVIRONMENT['PATH']}", bare)  # as the base image has it
            buildah("commit", bare, "bare")
            buildah("build", "--from", "localhost/bare", "--pull-never", "-f", ROOT / "ci/Containerfile", "-t", "kiln",
                    place / "context", step="the image")
            box = buildah("from", "--pull-never", "localhost/kiln")
            entry = json.loads(buildah("inspect", box))["OCIv1"]["config"]["Entrypoint"]
            # The volume of the file's own docker run: made anew, it takes the owner of the folder that it is put on.
            volume = place / "volume"
            volume.mkdir(mode=0o755)
            os.chown(volume, *map(int, buildah("run", box, "--", "/usr/bin/stat", "-c", "%u %g", "/home/kiln/.cache").split()))

            def kiln(*words, container=box, **options):
                # env: with chroot, buildah looks for a bare name in the PATH of the machine.
                return buildah("run", "-v", f"{registry.resolve()}:/registry:ro", "-v", f"{volume}:/home/kiln/.cache",
                               "-e", "KILN_REGISTRY=/registry", container, "--", "env", *entry, *words, **options)

            for words in (["trust", "add", "/registry", "--unsigned"], ["install", "geglu-mlp@1", "--device", "cpu"],
                          ["registry", "site", "/home/kiln/site"]):
                kiln(*words, step=f"kiln {words[0]}, as its user")
            # What one container installed, the next one has, by the volume alone.
            found = kiln("list", container=buildah("from", "--pull-never", "localhost/kiln"), step="kiln list, in the next container")
            if "geglu-mlp" not in found:
                sys.exit(f"systems: the volume should keep geglu-mlp, kiln list said: {found}")
        finally:
            subprocess.run([*tool, "rm", "--all"], check=False, stdout=subprocess.DEVNULL)
        return done


class NoRegistry(http.server.BaseHTTPRequestHandler):
    """Has nothing: who gets its answer trusted its certificate."""

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *arguments):
        del arguments


def check_certificates(root):
    """The command of the tar finds the system's certificates where each distribution keeps them, and only there."""
    with tempfile.TemporaryDirectory() as folder:
        own, key = pathlib.Path(folder) / "own.pem", pathlib.Path(folder) / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key,
                        "-out", own, "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
                       check=True, stderr=subprocess.DEVNULL)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), NoRegistry)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        registry = f"https://127.0.0.1:{server.server_port}/kernels"
        ask = ["chroot", root, "/opt/kiln/bin/kiln", "info", "geglu-mlp@1", "--registry", registry]

        def code():
            return subprocess.run(ask, env=ENVIRONMENT | {"KILN_UNSIGNED": registry, "KILN_CACHE": "/tmp/tls"},
                                  check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode

        assert code() == NETWORK, "a certificate of nobody's is trusted"
        for place in CERTIFICATES:
            file = root / place
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(own, file)
            assert code() == NOT_FOUND, f"the certificates in /{place} are not found"
            file.unlink()
        server.shutdown()
    print(f"  certificates: found in each of {len(CERTIFICATES)} places", flush=True)


# The registry of the package of kernels, served: a bundle of it, signed, and its address.
BUNDLE = """
cd /tmp
kiln registry serve --quiet --registry /opt/kiln/share/kiln/registry >signed 2>/tmp/log &
trap "kill $!" EXIT
for each in $(seq 100); do [ -s signed ] || sleep 0.1; done
export KILN_REGISTRY=$(cat signed) KILN_CACHE=/tmp/bundled
kiln trust add "$KILN_REGISTRY" --root /packages/kernels/root.json
kiln bundle create geglu-mlp@1 --all-variants -o kernels.tar
echo "$KILN_REGISTRY"
"""


def check_air_gap(archive, root):
    """docs/AIR_GAP.md: a bundle is made on this system, whose registry is signed, and carried to a second one. That one
    has Kiln's tar, the bundle, the root, and a program that was compiled here; it has no network and no registry."""
    signed = run_in(root, BUNDLE, ENVIRONMENT).strip().splitlines()[-1]
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        other = pathlib.Path(folder)
        subprocess.run(["tar", "-C", other, "-xf", archive], check=True)
        shutil.copytree(root / "opt/kiln", other / "srv/kiln", symlinks=True, ignore=shutil.ignore_patterns("registry*"))
        for file in ("tmp/kernels.tar", "packages/kernels/root.json", "tmp/build/geglu_mlp_example"):
            shutil.copy(root / file, other / "root")
        environment = {**ENVIRONMENT, "PATH": f"/srv/kiln/bin:{ENVIRONMENT['PATH']}"}
        del environment["KILN_REGISTRY"]

        def there(command):  # /proc for as long as the command runs
            return subprocess.run(["unshare", "--net", "--mount", "--propagation", "private", "sh", "-ec",
                                   'mount -t proc proc "$0/proc"; exec chroot "$0" sh -ec "$1"', other, f"cd /root; {command}"],
                                  env=environment, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        refused = there("kiln bundle install kernels.tar")
        if refused.returncode == 0 or signed not in refused.stdout:
            sys.exit(f"systems: a bundle that nobody vouches for there: expected a refusal that names {signed}, "
                     f"found exit status {refused.returncode}\n{refused.stdout}")
        done = there(f"kiln trust add {signed} --root root.json && kiln bundle install kernels.tar && "
                     f"export KILN_REGISTRY={signed} KILN_OFFLINE=1 && kiln doctor geglu-mlp@1 && ./geglu_mlp_example 64 96 160")
        if done.returncode != 0:
            sys.exit(f"systems: exit status {done.returncode} across the air gap\n{done.stdout[-4000:]}")
    print("  air gap: a bundle of this system computes on a second one, without a network", flush=True)


def first_value(path, key):
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        if line.startswith(key):
            return line.removeprefix(key).strip(" \t:=\"")
    return "unknown"


def made(folder):
    return sorted(file for pattern in ("*.deb", "*.tar.gz", "*.whl") for file in folder.glob(pattern))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=pathlib.Path)
    parser.add_argument("--registry", type=pathlib.Path, default=ROOT / "build/registry")
    parser.add_argument("--suites", default="bookworm,trixie")
    parser.add_argument("--ways", default=",".join([*WAYS, "container"]))
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    for way in options.ways.split(","):
        if way not in (*WAYS, "container"):
            parser.error(f"--ways: {way} is none of {', '.join([*WAYS, 'container'])}")
    if not list(options.packages.glob("*-linux-x86_64.tar.gz")):
        sys.exit(f"systems: {options.packages} has no packages for this machine. Run ci/package")
    if os.geteuid() != 0:
        sys.exit("systems: chroot wants root")
    if not (options.registry / "geglu-mlp").is_dir():
        sys.exit(f"systems: {options.registry} has no geglu-mlp. Run ci/quickstart, or name a registry by --registry")
    packages = made(options.packages)
    with signed_kernels(packages, options.registry) as kernels:
        results = install_all(options, packages, kernels)
    if options.record:
        record(options, results)


def install_all(options, packages, kernels):
    results = []
    for suite in options.suites.split(","):
        archive = base(suite, options.packages / "roots")
        for way in options.ways.split(","):
            if way == "container":
                print(f"{suite}, by {way}:", flush=True)
                results.append({"system": suite, "way": way, "steps": run_container(archive, packages, options.registry)})
                continue
            with system(archive, packages, options.registry, kernels) as root:
                name = first_value(root / "etc/os-release", "PRETTY_NAME")
                print(f"{name}, by {way}:", flush=True)
                steps = carry_out(root, WAYS[way], ENVIRONMENT)
                if way == "tar":
                    check_certificates(root)
                    check_air_gap(archive, root)
                results.append({"system": name, "way": way, "steps": steps})
    return results


def record(options, results):
    document = {
        "schema": "kiln.install/1",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": (options.packages / "COMMIT").read_text(encoding="utf-8").strip(),
        "machine": {"cpu": first_value("/proc/cpuinfo", "model name"), "cores": os.cpu_count(),
                    "kernel": platform.release(), "load": os.getloadavg()[2]},
        "packages": [{"file": file.name, "bytes": file.stat().st_size} for file in made(options.packages)],
        "systems": results,
    }
    out = ROOT / "ci/results/install.json"
    out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"systems: wrote {out.relative_to(ROOT)}; now run ci/figures")


if __name__ == "__main__":
    main()
