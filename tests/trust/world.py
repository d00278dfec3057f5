# SPDX-License-Identifier: Apache-2.0
"""A signed registry on a server, a user who trusts its root and nothing else, and the sandbox of
tests/hostile around both."""

import json
import re
import shutil
import time

from sandbox import INTEGRITY, LIBRARY, OK, forge, require  # first: it says where forge is
from signed_registry import TRUST, SignedRegistry

NETWORK, TRUST_CODE = 5, 7
NEXT_STEP = re.compile(r"[.;] (?:[A-Z][a-z]+ [^.;]*; )?(?:Tell|Ask|Check|Get|Run|Correct|Restore|Upgrade) ")
QUICK = {"tries": 2, "backoff_ms": 20, "connect_seconds": 2, "stall_seconds": 1, "deadline_seconds": 4}


class World:
    """sample@1 in a signed registry behind a server, and a user who trusts the root and nothing else."""

    def __init__(self, box):
        self.box = box
        self.package = box.package().publish()
        self.registry = SignedRegistry(box.root)
        self.registry.close()  # its own server: nobody asks it
        self.good = self.registry.index()
        self.registry.vouch(self.good)
        self.seen = []  # (exit code, what the command said)
        del box.environment["KILN_UNSIGNED"]
        box.environment["KILN_CONFIG"] = str(box.notes / "config.json")
        box.environment["KILN_SAFE_FOLDERS"] = str(box.notes)  # where the launcher may write, as anybody
        self.settings()
        box.serve()
        self.trust()

    def settings(self, **members):
        path = self.box.notes / "config.json"
        path.write_text(json.dumps({"schema": "kiln.settings/1", "network": QUICK} | members))
        path.chmod(0o644)

    def trust(self, root=None):
        path = self.box.notes / "root.json"
        path.write_bytes(root or self.registry.first_root)
        done = self.box.kiln("trust", "add", self.box.registry, "--root", str(path), "--replace")
        require(done.code == OK, done.output)

    def evil(self, **how):
        """The folder's tag of sample@1 names other code from now on; gives its index."""
        forge.Package(self.box.root, files={"LICENSE": b"x\n", "lib/libsample.so": LIBRARY + b"evil"},
                      **how).publish()
        return self.registry.index(how.get("name", "sample"), how.get("version", 1))

    def meddle(self, part, behave):
        self.box.server.part, self.box.server.behave = part, behave

    def honest(self):
        self.box.server.behave = None

    def install(self, code, word, *more, spec="sample@1", **how):
        """Asks for the newest answer of the registry, where there is something in the cache."""
        done = self.box.expect(code, word, spec, "--refresh", "--device", "cpu", "--registry",
                               self.box.registry, *more,
                               run=lambda *words, **options: self.box.kiln("install", *words, **options), **how)
        self.seen.append((done.code, done.output))
        if code in (TRUST_CODE, INTEGRITY):
            require(NEXT_STEP.search(done.output), f"no next step: {done.output}")
        return done

    def loads_good(self, *more):
        """get_kernel, and that it is the library that was signed first."""
        done = self.box.load(*more)
        self.box.marker.unlink(missing_ok=True)
        require(done.code == OK and self.folder_of(self.package) in done.output, done.output)

    @staticmethod
    def folder_of(package):
        return forge.digest_of(forge.dump(package.config)).removeprefix("sha256:")

    def forget(self):
        shutil.rmtree(self.box.cache)
        self.box.cache.mkdir(mode=0o755)

    def keep_metadata(self):
        """Serves this state again when what it gives is called."""
        copy = self.box.work / f"metadata-{time.monotonic_ns()}"
        shutil.copytree(self.box.root / TRUST, copy)

        def serve_again():
            shutil.rmtree(self.box.root / TRUST)
            shutil.copytree(copy, self.box.root / TRUST)
        return serve_again

    def state(self, role):
        """The file in which the cache has a role's document."""
        [path] = self.box.cache.glob(f"tuf/*/{role}.json")
        return path
