# SPDX-License-Identifier: Apache-2.0
"""Sandbox: the real kiln command beside files that it must not touch, and what a run of it costs.

A table is a list of cases; each runs in a sandbox of its own, some at a time. Wants KILN_BIN (the
folder of the binaries), KILN_LAUNCH and KILN_MARKER_LIBRARY (launch.c and marker.c, built), and
KILN_SANITIZED if they carry sanitizers, whose memory then says nothing.
"""

import concurrent.futures
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import traceback

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "http")]
import forge  # noqa: E402
from misbehave import Server  # noqa: E402

KILN = str(pathlib.Path(os.environ["KILN_BIN"]) / "kiln")
LAUNCH = os.environ["KILN_LAUNCH"]
LIBRARY = pathlib.Path(os.environ["KILN_MARKER_LIBRARY"]).read_bytes()
SANITIZED = bool(os.environ.get("KILN_SANITIZED"))
OPTIONS = {name: os.environ[name] for name in ("ASAN_OPTIONS", "LSAN_OPTIONS") if name in os.environ}
OK, INTERNAL, USAGE, NO_VARIANT, NOT_FOUND, INTEGRITY = 0, 1, 2, 3, 4, 6
LOCK, CACHE, UPGRADE, LOAD = 8, 9, 11, 12

# The most that any of them may take, on a machine without a GPU: a document has at most 4 MiB.
MEMORY = 32 << 20
DISK = 16 << 20


class Broken(Exception):
    """Something went otherwise than the case says."""


def require(condition, text):
    if not condition:
        raise Broken(text)


class Run:
    """One run of the command: its exit code, what it printed, and what the kernel counted."""

    def __init__(self, arguments, environment, folder, report, strict=False, prefix=(),
                 prepare=None, timeout=30, **files):
        report.touch()
        command = [*prefix, LAUNCH, str(report), *(["--no-memfd"] if strict else []), *arguments]
        files = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
                 "stdin": subprocess.DEVNULL} | files
        try:
            run = subprocess.run(command, env=environment, cwd=folder, preexec_fn=prepare,
                                 timeout=timeout, **files)
        except subprocess.TimeoutExpired as error:
            raise Broken(f"still running after {timeout} s") from error
        numbers = report.read_text().split()
        report.unlink()
        self.output = ((run.stdout or b"") + (run.stderr or b"")).decode(errors="backslashreplace")
        self.code = run.returncode
        self.memory, self.written = (int(numbers[0]) << 10, int(numbers[1]) << 9) if len(numbers) == 2 else (0, 0)


def listing(folder, *without):
    """Every path below a folder with what a write would change."""
    found = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if any(path == each or each in path.parents for each in without):
            continue
        status = path.lstat()
        size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        found[str(path)] = (status.st_mode, size, status.st_mtime_ns, status.st_uid)
    return found


class Sandbox:
    """An empty registry and cache, and bystanders that nothing may touch."""

    def __init__(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="kiln-hostile-"))
        self.work.chmod(0o755)
        self.around = self.work / "around"
        self.cache = self.around / "deep/cache"
        self.root = self.work / "registry"
        self.notes = self.work / "notes"
        self.notes.mkdir(mode=0o755)
        self.notes.chmod(0o777)
        self.marker = self.notes / "loaded"
        for name in ("LICENSE", "escaped-not", "deep/LICENSE", "home/.profile"):
            path = self.around / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine\n")
        self.cache.mkdir(mode=0o755)
        self.environment = {"HOME": str(self.around / "home"), "KILN_UNSIGNED": "/,http://127.0.0.1", "KILN_CACHE": str(self.cache),
                            "KILN_MARKER": str(self.marker), "PATH": "/usr/bin:/bin"} | OPTIONS
        self.registry = str(self.root)
        self.server = None
        self.cost = {"memory": 0, "written": 0, "kept": 0}
        self.most_memory = MEMORY
        self.refused = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.server:
            self.server.close()
        shutil.rmtree(self.work, ignore_errors=True)

    def package(self):
        """A package that any machine takes, not yet published."""
        return forge.Package(self.root, files={
            "LICENSE": b"Apache-2.0\n", "lib/libsample.so": LIBRARY})

    def serve(self):
        """From here on the registry is an HTTP server."""
        self.server = Server(self.root)
        self.registry = f"http://127.0.0.1:{self.server.port}"

    def kiln(self, *arguments, environment=None, **options):
        variables = {key: value for key, value in (self.environment | (environment or {})).items()
                     if value is not None}
        run = Run([KILN, *arguments], variables, self.around, self.notes / "report", **options)
        require("Sanitizer" not in run.output, run.output)
        shown = [c for c in run.output if not c.isprintable() and c not in "\n\t"]
        require(not shown, f"control bytes are shown: {run.output[:2000]!r}")
        return run

    def load(self, *arguments, **options):
        """doctor installs and loads, as whoever calls get_kernel does."""
        return self.kiln("doctor", "sample@1", "--device", "cpu", "--registry", self.registry,
                         *arguments, **options)

    def expect(self, code, word, *arguments, run=None, **options):
        """Runs `run` (load, with these words and options): this exit code, this word; loaded if it is
        OK, else not; nothing outside the cache is written, and little inside."""
        before = listing(self.work, self.cache, self.notes)
        done = (run or self.load)(*arguments, **options)
        loaded = self.marker.exists()
        self.marker.unlink(missing_ok=True)
        require(done.code == code, f"exit {done.code}, expected {code}: {done.output}")
        require(word in done.output, f"the text lacks '{word}': {done.output}")
        require(len(done.output) < 8192, f"{len(done.output)} bytes of text")
        require(loaded or code != OK or run, "it was not loaded")
        require(not loaded or code in (OK, LOAD), "it was loaded")
        after = listing(self.work, self.cache, self.notes)
        changed = [path for path in before.keys() | after.keys()
                   if before.get(path) != after.get(path)]
        require(not changed, f"outside the cache were written: {changed}")
        self.refused = code != OK
        self.note("memory", done.memory, self.most_memory)
        self.note("written", done.written, DISK)
        return done

    def note(self, kind, value, most):
        self.cost[kind] = max(self.cost[kind], value)
        require(SANITIZED or value <= most, f"{kind}: {value} bytes, at most {most} are fine")

    def check_cache(self):
        """What a refusal leaves is whole: nothing half-written, nothing that is not a file."""
        verified = self.kiln("cache", "verify")
        require(verified.code == OK, verified.output)
        kept = 0
        for path in self.cache.rglob("*"):
            require(".tmp" not in path.name and path.suffix != ".part", f"left: {path}")
            require(not path.is_symlink(), f"a link: {path}")
            require(not path.stat().st_mode & stat.S_IWOTH, f"everyone may write to {path}")
            kept += path.stat().st_size if path.is_file() else 0
        self.note("kept", kept, DISK)


def run_table(title, cases):
    """cases: pairs of a name and a function that takes a sandbox. Exits with 1 if any is broken."""
    start = time.monotonic()
    worst = {"memory": (0, ""), "written": (0, ""), "kept": (0, "")}
    refused = 0
    broken = 0
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""

    def run(case):
        with Sandbox() as box:
            try:
                case[1](box)
                return box, None
            except Broken as error:
                return box, str(error)
            except Exception:  # the case itself is wrong
                return box, traceback.format_exc()

    cases = [case for case in cases if wanted in case[0]]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for (name, _), (box, problem) in zip(cases, pool.map(run, cases)):
            refused += box.refused
            for kind, value in box.cost.items():
                worst[kind] = max(worst[kind], (value, name))
            if problem:
                broken += 1
                print(f"FAILED: {name}: {problem.strip()[:2000]}")
    cost = "; ".join(f"most {kind} {value / 1e6:.1f} MB ({name})"
                     for kind, (value, name) in worst.items())
    print(f"{title}: {len(cases)} tried, {refused} refused as expected, "
          f"{len(cases) - refused - broken} to be lived with, {broken} went otherwise; {cost}; "
          f"{time.monotonic() - start:.0f} s")
    sys.exit(1 if broken else 0)
