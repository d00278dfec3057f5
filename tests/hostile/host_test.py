#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile machines: environment, files that a user names, limits, disks, clocks and descriptors that a
process may be started with, before the real command. What needs a mount runs as root alone.
"""

import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import time

from sandbox import (CACHE, INTEGRITY, INTERNAL, LOAD, LOCK, NOT_FOUND, OK, SANITIZED, USAGE, require,
                     run_table)
from clock import later  # sandbox says where it is

CASES = []
ROOT = os.geteuid() == 0 and subprocess.run(
    ["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


def case(name, when=True):
    def add(function):
        if when:
            CASES.append((name, function))
        return function
    return add


def published(function):
    """The case begins with a package in the registry."""
    def run(box):
        box.package().publish()
        function(box)
    return run


def row(name, code, word, *arguments, environment=None, registry=None, **options):
    """{} in a word or variable is the sandbox's folder."""
    def run(box):
        def filled(value):
            return value.replace("{}", str(box.work)) if isinstance(value, str) else value
        variables = {key: filled(value) for key, value in (environment or {}).items()}
        box.registry = registry or box.registry
        box.expect(code, word, *map(filled, arguments), environment=variables, **options)
        box.check_cache()
    case(name)(published(run))


# The environment.
row("no place for a cache", CACHE, "Set KILN_CACHE",
    environment={"KILN_CACHE": None, "XDG_CACHE_HOME": None, "HOME": None})
for variable in ("KILN_CACHE", "XDG_CACHE_HOME", "HOME"):
    row(f"a relative {variable}", CACHE, "relative",
        environment={"KILN_CACHE": None, "XDG_CACHE_HOME": None, variable: "some/where"})
row("a cache name of 300 bytes", CACHE, "too long", environment={"KILN_CACHE": "{}/" + "x" * 300})
row("a cache below a file", CACHE, "", environment={"KILN_CACHE": "{}/around/LICENSE/cache"})
row("a cache that is a device", CACHE, "not a folder", environment={"KILN_CACHE": "/dev/null"})
row("a cache in /proc", CACHE, "", environment={"KILN_CACHE": "/proc/self/cache"})
row("HOME that is not there", OK, "loads", environment={"HOME": "/nonexistent"})
row("only the cache is set", OK, "loads", environment={"HOME": None, "PATH": None})
row("an unknown locale", OK, "loads",
    environment={"LC_ALL": "xx_XX.nowhere", "LANG": "\udcff", "LANGUAGE": "tr"})
row("a Turkish locale", OK, "loads", environment={"LC_ALL": "tr_TR.UTF-8"})
row("TMPDIR that is not there", OK, "loads", environment={"TMPDIR": "/nonexistent"})
row("unknown variables of Kiln's", OK, "loads", environment={"KILN_": "x", "KILN_FUTURE": "1"})
row("1 MiB of environment", OK, "loads",
    environment={f"PADDING_{i}": "x" * 100_000 for i in range(10)})
for fact, values in {"SM": ("nine", ",9.0", "-9.0", "9" * 40 + ".0", "\x1b[2J", "9.0 8.0"),
                     "CUDA": ("12", "12.9.1", "99999999999.0", "\x1b[2J")}.items():
    for value in values:
        row(f"KILN_OVERRIDE_{fact} = {value[:12]!r}", USAGE, f"KILN_OVERRIDE_{fact}",
            environment={f"KILN_OVERRIDE_{fact}": value})
row("KILN_LOAD_MODE of another word", USAGE, "KILN_LOAD_MODE", environment={"KILN_LOAD_MODE": "\x1b"})
for value, code in {"ftp://x": USAGE, "https://": USAGE, "https://a:b@c": USAGE, "file://x": NOT_FOUND,
                    "http://192.0.2.1": USAGE, "https://x/?y": USAGE, "/nonexistent": NOT_FOUND,
                    "https://\x1b[2J": USAGE, "/dev/null": USAGE}.items():
    row(f"registry {value!r}", code, "", registry=value)

# What is asked for.
for word in ("", "@", "@1", "sample@", "sample@0", "sample@-1", "sample@1e3", "sample@99999999999999",
             "../../x@1", "a/b@1", "sample@1@2", "Sample@1", "s\u00e4mple@1", "\x1b[2J@1", "x" * 100_000):
    @case(f"the package {word[:20]!r}")
    @published
    def spec(box, word=word):
        box.expect(USAGE, "", run=functools.partial(box.kiln, "install", word))

# Files that a user or an administrator names.
DEEP = "[" * 100_000
FILES = {
    "no JSON": b"<html>", "nothing in it": b"", "not UTF-8": b'{"schema":"\xff"}',
    "a key twice": b'{"schema":"a","schema":"a"}', "100,000 levels": DEEP.encode(),
    "another schema": b'{"schema":"kiln.other/1"}', "a list": b"[]", "a NUL": b"{}\0",
    "5 MiB": b'{"x":"' + b" " * (5 << 20) + b'"}', "escapes": b'{"\x1b[2J\\u001b[2J":1}',
}
GOOD_SETTINGS = {"schema": "kiln.settings/1"}
SETTINGS = {
    "an unknown member": {"denny": []}, "deny that is no list": {"deny": "x"},
    "an empty word": {"deny": [""]}, "0 tries": {"network": {"tries": 0}},
    "a century": {"network": {"deadline_seconds": 3_000_000_000}},
    "below zero": {"network": {"tries": -1}}, "a mirror of a folder": {"mirrors": {"/x": ["/y"]}},
    "a relative mirror": {"mirrors": {"https://x": ["../y"]}},
    "an escape": {"\x1b[2J": 1}, "numbers as hosts": {"insecure_http": [1]},
}


def named(place, codes, command, environment=None):
    """The ways in which a file that a user names can be wrong; {} is the file. `codes`: of a file that
    cannot be read, and of one that says nothing."""
    def tried(what, prepare, code, word="given"):
        @case(f"{place}: {what}")
        @published
        def run(box):
            file = box.around / "given"
            prepare(file)
            words = [each.format(file) for each in command]
            variables = {key: value.format(file) for key, value in (environment or {}).items()}
            box.expect(code, word, *words, "--registry", box.registry, run=box.kiln,
                       environment=variables, timeout=10)
            box.check_cache()

    unread, wrong = codes
    for name, content in FILES.items():
        tried(name, lambda file, content=content: file.write_bytes(content),
              unread if name == "5 MiB" and place != "bundle" else wrong)
    tried("not there", lambda file: None, unread)
    tried("a folder", lambda file: file.mkdir(), unread if place != "bundle" else NOT_FOUND,
          "" if place == "bundle" else "given")
    tried("a link to itself", lambda file: file.symlink_to(file), unread)
    other = USAGE if place == "bundle" else unread  # what stands there is no folder; absent it is not
    tried("a device without end", lambda file: file.symlink_to("/dev/zero"), other)
    tried("a pipe that nobody writes to", lambda file: os.mkfifo(file), other)
    return tried


INSTALL = ("install", "sample@1", "--device", "cpu")
settings = named("settings", (USAGE, USAGE), INSTALL, {"KILN_CONFIG": "{}"})
for name, members in SETTINGS.items():
    settings(name, lambda file, members=members: file.write_text(json.dumps(GOOD_SETTINGS | members)),
             USAGE)
named("lock file", (LOCK, LOCK), (*INSTALL, "--lock", "{}"))
named("facts", (USAGE, INTEGRITY), (*INSTALL, "--host", "{}"))
named("bundle", (NOT_FOUND, INTEGRITY), (*INSTALL, "--from", "{}"))
named("requirements", (USAGE, USAGE), ("lock", "--requirements", "{}"))


@case("registry folder: a pipe in a document's place")
@published
def pipe(box):
    for path in (box.root / "sample/index.json", *(box.root / "sample/blobs/sha256").iterdir()):
        shutil.rmtree(box.cache)
        box.cache.mkdir(mode=0o755)
        aside = path.with_name("aside")
        path.rename(aside)
        os.mkfifo(path)
        box.expect(INTEGRITY, "it is not a regular file", timeout=10)
        path.unlink()
        aside.rename(path)
    box.check_cache()


# What a process is started with.
def limited(*limits):
    def prepare():
        for which, most in limits:
            resource.setrlimit(which, (most, most))
    return prepare


def survives(name, prepare, codes, **options):
    """Whatever comes of it has one of these codes; the cache is whole and the next run succeeds."""
    @case(name)
    @published
    def run(box):
        done = box.kiln("doctor", "sample@1", "--device", "cpu", "--registry", box.registry,
                        prepare=prepare, **options)
        require(done.code in codes, f"exit {done.code}: {done.output}")
        box.check_cache()
        box.marker.unlink(missing_ok=True)
        box.expect(OK, "loads")
        box.refused = done.code != OK


for most in (0, 1, 100, 1000, 10_000):
    survives(f"files of {most} bytes", limited((resource.RLIMIT_FSIZE, most)), (CACHE,))
if not SANITIZED:  # sanitizers take memory, and open files to look at it
    for most in (5, 6, 7, 8, 10, 12, 16, 24):
        survives(f"{most} descriptors", limited((resource.RLIMIT_NOFILE, most)), (OK, CACHE, LOAD))
    for most in range(48, 80, 4):  # 127: the dynamic linker finds no room for kiln's libraries
        survives(f"{most} MB of memory", limited((resource.RLIMIT_AS, most * 1_000_000)),
                 (OK, INTERNAL, LOAD, 127))
    survives("128 KiB of stack", limited((resource.RLIMIT_STACK, 128 << 10)), (OK,))
survives("no core files, no locked memory", limited((resource.RLIMIT_CORE, 0),
                                                   (resource.RLIMIT_MEMLOCK, 0)), (OK,))
for mask in (0o077, 0o000, 0o277):
    if mask != 0o277 or os.geteuid() == 0:  # nobody else may write into the folders that it makes
        survives(f"umask {mask:03o}", functools.partial(os.umask, mask), (OK,))

for closed in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)):
    @case(f"descriptors {closed} are closed")
    @published
    def run(box, closed=closed):
        script = " ".join(f"{fd}>&-" for fd in closed)
        box.expect(OK, "", "sample@1", "--device", "cpu", "--registry", box.registry,
                   run=functools.partial(box.kiln, "install"),
                   prefix=("sh", "-c", f'exec "$@" {script}', "sh"))
        box.check_cache()
        box.expect(OK, "loads")


@case("no room for what is printed")
@published
def full_stdout(box):
    with open("/dev/full", "wb") as full:
        for words in (("cache", "dir"), ("list", "--json"), ("completions", "bash")):
            box.expect(CACHE, "write the result", *words, run=box.kiln, stdout=full,
                       stderr=subprocess.PIPE)


@case("the current folder is gone")
@published
def gone(box):
    box.expect(OK, "loads", prefix=("sh", "-c", f'mkdir {box.notes}/gone; cd {box.notes}/gone; '
                                    f'rmdir {box.notes}/gone; exec "$@"', "sh"))


@case("signals that are ignored or blocked")
@published
def signals(box):
    def prepare():
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
        for each in (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
    box.expect(OK, "loads", prepare=prepare)


for year, when in ((1970, 1), (2038, 1 << 31), (2100, 4102444800)):
    @case(f"the clock says {year}")
    @published
    def clock(box, when=when):
        prefix = later(when - time.time())
        box.expect(OK, "loads", prefix=prefix)
        box.expect(OK, "loads")
        require(box.kiln("cache", "gc", prefix=prefix).code == OK, "gc")
        box.check_cache()
        box.expect(OK, "loads", prefix=prefix)


@case("files of a cache from the future and from the past")
@published
def times(box):
    box.expect(OK, "loads")
    for seconds in (0, 1 << 33):
        for path in box.cache.rglob("*"):
            os.utime(path, (seconds, seconds), follow_symlinks=False)
        box.expect(OK, "loads")
        require(box.kiln("cache", "gc").code == OK, "gc")
        box.check_cache()
    box.expect(OK, "loads")


@case("no memory files")
@published
def strict(box):
    box.expect(LOAD, "KILN_LOAD_MODE=path", strict=True)
    box.expect(OK, "loads", strict=True, environment={"KILN_LOAD_MODE": "path"})


# Disks, which only root can mount.
def mounted(box, script, code, word, *arguments, **options):
    """In a mount namespace of its own, after the script."""
    box.expect(code, word, *arguments, prefix=("unshare", "-m", "sh", "-ec", script + '; exec "$@"', "sh"),
               **options)


@case("a cache on a disk without exec", ROOT)
@published
def noexec(box):
    tmpfs = f"mount -t tmpfs -o noexec,mode=755 none {box.cache}"
    mounted(box, tmpfs, OK, "loads")
    mounted(box, tmpfs, LOAD, "", environment={"KILN_LOAD_MODE": "path"})


@case("a disk that is full, and one without inodes", ROOT)
@published
def full(box):
    for size in range(4, 44, 8):
        mounted(box, f"mount -t tmpfs -o size={size}k,mode=755 none {box.cache}", CACHE, "")
    for inodes in range(2, 22, 3):
        mounted(box, f"mount -t tmpfs -o nr_inodes={inodes},mode=755 none {box.cache}", CACHE, "")


@case("a root that is read-only, and a cache that is not", ROOT)
@published
def read_only_root(box):
    mounted(box, f"mount --bind {box.cache} {box.cache}; mount --bind {box.notes} {box.notes}; "
            "mount -o remount,bind,ro /", OK, "loads")


@case("a cache that is read-only, cold and warm", ROOT)
@published
def read_only(box):
    script = f"mount --bind {box.cache} {box.cache}; mount -o remount,bind,ro {box.cache}"
    mounted(box, script, CACHE, "ead-only file system")
    box.expect(OK, "loads")
    mounted(box, script, OK, "is read-only: what is in it works")


@case("a cache in a lower layer of an overlay, as in a container's image", ROOT)
@published
def overlay(box):
    box.expect(OK, "loads")
    script = (f"mount -t tmpfs none /mnt; mkdir /mnt/upper /mnt/work; mount -t overlay overlay "
              f"-o lowerdir={box.cache},upperdir=/mnt/upper,workdir=/mnt/work {box.cache}")
    tried = subprocess.run(["unshare", "-m", "sh", "-ec", script], capture_output=True, check=False)
    if tried.returncode != 0:
        return  # a system without overlayfs, or on one
    mounted(box, script, OK, "loads")
    for words in (["uninstall", "sample@1"], ["cache", "gc", "--unlocked"]):
        done = box.kiln(*words, prefix=("unshare", "-m", "sh", "-ec", script + '; exec "$@"; ', "sh"))
        require(done.code == OK, done.output)


@case("no /proc", ROOT and not SANITIZED)
@published
def no_proc(box):
    mounted(box, "umount -l /proc", LOAD, "There is no /proc: mount it, or set KILN_LOAD_MODE=path")
    done = box.kiln("registry", "list", prefix=("unshare", "-m", "sh", "-ec", 'umount -l /proc; exec "$@"', "sh"))
    require(done.code == NOT_FOUND and "find its own folder. Mount /proc" in done.output, done.output)
    mounted(box, "umount -l /proc", OK, "loads", environment={"KILN_LOAD_MODE": "path"})


@case("no /dev, /tmp or /etc", ROOT)
@published
def no_devices(box):
    mounted(box, "mount -t tmpfs none /dev; mount -t tmpfs none /etc", OK, "loads")


if __name__ == "__main__":
    run_table("host", CASES)
