#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of TUF's client workflow, each broken before the real command by who may sign: what holds no
longer is refused with its code, nothing is loaded, and the memory and disk that it costs stay bounded. Named by
the sections of specification 1.0.31. tests/trust/client_test.py asks the same of kiln-tuf, and of python-tuf.
"""

import base64
import json
import os
import pathlib
import pty
import select
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "hostile")]
from sandbox import DISK, INTEGRITY, KILN, NOT_FOUND, OK, USAGE, forge, require, run_table  # noqa: E402
from repository import PAST, envelope, key_entry  # noqa: E402
from securesystemslib.signer import CryptoSigner  # noqa: E402
from world import TRUST_CODE, World  # noqa: E402

CASES = []
MOST_MEMORY = 64 << 20  # a document of 200,000 values, the most that are read, takes 48 MB


def rule(name, code, word, keeps=True):
    """Breaks it in a world that has installed once: `break_it(repository, world)` changes and signs. `keeps`: what
    was installed before goes on to work, since the state of before is still the newest that holds."""
    def add(break_it):
        def run(box):
            world = World(box)
            box.most_memory = MOST_MEMORY
            world.install(OK, "")
            for role in ("timestamp", "snapshot", "targets"):
                world.registry.metadata.signed[role]["version"] += 1
            break_it(world.registry.metadata, world)
            world.install(code, word)
            if code != OK and keeps:
                world.loads_good()
            box.note("kept", sum(path.stat().st_size for path in box.cache.rglob("*") if path.is_file()), DISK)
        CASES.append((name, run))
        return break_it
    return add


def document(name, role, code, word, change):
    """`change` gets the part of a role's document that is signed."""
    @rule(name, code, word)
    def broken(repository, world):
        if role == "root":
            repository.signed["root"]["version"] += 1
        change(repository.signed[role])
        if role == "root":
            repository.write("root")
        repository.publish()
        world.registry.write()


# 5.3: the root.
document("5.3.4: a root that leaves a version out", "root", OK, "", lambda root: root.update(version=3))
document("5.3.10: an expired root", "root", TRUST_CODE, "expired at", lambda root: root.update(expires=PAST))
document("4.3: a threshold of 0", "root", TRUST_CODE, "found 0",
         lambda root: root["roles"]["targets"].update(threshold=0))
document("4.3: a threshold that no number of keys can reach", "root", TRUST_CODE, "expected 9",
         lambda root: root["roles"]["timestamp"].update(threshold=9))
document("4.3: a key id twice", "root", TRUST_CODE, "appears twice",
         lambda root: root["roles"]["targets"]["keyids"].append(root["roles"]["targets"]["keyids"][0]))
document("4.3: no keys for a role", "root", TRUST_CODE, "signed by 0",
         lambda root: root["roles"]["timestamp"].update(keyids=[]))
document("4.3: a role is missing", "root", TRUST_CODE, "snapshot", lambda root: root["roles"].pop("snapshot"))


@rule("5.3.5: a next root of the same version", TRUST_CODE, "version is 1, expected 2")
def same_root(repository, world):
    repository.files["metadata/2.root.json"] = repository.bytes("root")
    repository.publish()
    world.registry.write()


@rule("5.3.4: a next root signed by its own keys alone", TRUST_CODE, "signed by 0")
def own_root(repository, world):
    repository.signers["root"] = [CryptoSigner.generate_ed25519()]
    repository.signed["root"]["version"] = 2
    repository.appoint()
    repository.write("root")
    repository.publish()
    world.registry.write()


@rule("5.3.4: a next root signed by the keys before it alone", TRUST_CODE, "signed by 0")
def old_root(repository, world):
    before = repository.signers["root"]
    repository.signers["root"] = [CryptoSigner.generate_ed25519()]
    repository.signed["root"]["version"] = 2
    repository.appoint()
    repository.write("root", before)
    repository.publish()
    world.registry.write()


@rule("5.3: 60 roots in one update", OK, "")
def many_roots(repository, world):
    for _ in range(60):
        repository.rotate("root", "timestamp")
    repository.publish()
    world.registry.write()


# Each document: form and header.
SPELLINGS = {
    "4.1: a fraction": lambda text: text.replace(b'"version": ', b'"x": 0.5, "version": ', 1),
    "4.1: a key of an object twice": lambda text: text.replace(b'{"signatures"', b'{"signatures": [], "signatures"', 1),
    "4.1: bytes behind it": lambda text: text + b"{}",
    "4.1: 100,000 levels": lambda text: b"[" * 100_000,
    "4.1: more values than are read": lambda text: text.replace(b'"signatures": [', b'"signatures": [' + b",".join(
        b'{"keyid":"%d","sig":"00"}' % each for each in range(100_000)) + b",", 1),
    "4.2: 50,000 signatures": lambda text: text.replace(b'"signatures": [', b'"signatures": [' + b",".join(
        b'{"keyid":"%d","sig":"00"}' % each for each in range(50_000)) + b",", 1),
    "4.2: a signature twice": lambda text: text.replace(b'"signatures": [', b'"signatures": [' + json.dumps(
        json.loads(text)["signatures"][0]).encode() + b", ", 1),
    "4.2: no signatures": lambda text: json.dumps(json.loads(text) | {"signatures": []}).encode(),
    "4.2: a signature of no hex": lambda text: text.replace(b'"sig": "', b'"sig": "zz'),
    "4.2: nothing": lambda text: b"",
}
for SPELLING, SPELL in SPELLINGS.items():  # one reader reads all roles: the targets are the largest
    @rule(f"{SPELLING}, in targets.json", TRUST_CODE, "")
    def spelled(repository, world, spell=SPELL):
        repository.write("targets")
        repository.files[repository.name("targets")] = spell(repository.bytes("targets"))
        repository.signed["snapshot"]["meta"] = {"targets.json": repository.describe("targets")}
        repository.publish_snapshot()
        world.registry.write()

HEADERS = (("4.2: of another type", "expected", {"_type": "root"}),
           ("4.2: of specification 2", "expected 1.x", {"spec_version": "2.0.0"}),
           ("4.2: version -1", "", {"version": -1}), ("4.2: version 0", "found 0", {"version": 0}),
           ("4.2: version \"1\"", "", {"version": "1"}), ("4.2: no time", "expected a time", {"expires": "soon"}))
for NUMBER, (NAME, WORD, CHANGE) in enumerate(HEADERS):
    ROLE = ("timestamp", "snapshot", "targets")[NUMBER % 3]
    document(f"{NAME}: {ROLE}.json", ROLE, TRUST_CODE, WORD, lambda signed, change=CHANGE: signed.update(change))
for ROLE in ("timestamp", "snapshot", "targets"):
    document(f"5: expired: {ROLE}.json", ROLE, TRUST_CODE, "expired at", lambda signed: signed.update(expires=PAST))


# 5.4 to 5.6: what one document says of the next.
@rule("5.4.3: the same version of a timestamp, with other content, changes nothing", OK, "")
def same_version(repository, world):
    for role in ("timestamp", "snapshot", "targets"):
        repository.signed[role]["version"] -= 1
    repository.signed["targets"]["targets"] = {}
    repository.publish()
    world.registry.write()


def promised(name, role, by, code, word, change):
    """`by` promises something else of the role's document than it is."""
    @rule(name, code, word)
    def broken(repository, world):
        repository.publish()
        change(repository.signed[by]["meta"][f"{role}.json"])
        if by == "snapshot":
            repository.publish_snapshot()
        repository.write("timestamp")
        world.registry.write()


for ROLE, BY in (("snapshot", "timestamp"), ("targets", "snapshot")):
    SECTION = "5.5" if ROLE == "snapshot" else "5.6"
    promised(f"{SECTION}.2: {ROLE}.json a byte longer", ROLE, BY, TRUST_CODE, "",
             lambda meta: meta.update(length=meta["length"] - 1))
    promised(f"{SECTION}.2: {ROLE}.json a byte shorter", ROLE, BY, TRUST_CODE, "its signer promises",
             lambda meta: meta.update(length=meta["length"] + 1))
    promised(f"{SECTION}.2: {ROLE}.json of another hash", ROLE, BY, TRUST_CODE, "its signer promises",
             lambda meta: meta.update(hashes={"sha256": "0" * 64}))
    promised(f"{SECTION}.2: {ROLE}.json under hashes that nobody knows", ROLE, BY, TRUST_CODE, "known algorithm",
             lambda meta: meta.update(hashes={"md5": "0" * 32}))
    promised(f"{SECTION}.2: {ROLE}.json under one right and one wrong hash", ROLE, BY, TRUST_CODE,
             "its signer promises", lambda meta: meta["hashes"].update(sha512="0" * 128))
    promised(f"{SECTION}.4: {ROLE}.json of another version than is named", ROLE, BY, NOT_FOUND, "there is no",
             lambda meta: meta.update(version=meta["version"] + 1))
    promised(f"{SECTION}.2: {ROLE}.json with a length below 0", ROLE, BY, TRUST_CODE, "",
             lambda meta: meta.update(length=-1))


@rule("5.5.5: a snapshot that lost a role", TRUST_CODE, "it lost \"extra.json\"")
def lost_role(repository, world):
    repository.delegate("extra", paths=["extra/*"])
    repository.publish()
    world.registry.write()
    world.install(OK, "")
    repository.delegated.remove("extra")
    for role in ("timestamp", "snapshot"):
        repository.signed[role]["version"] += 1
    repository.publish()
    world.registry.write()


def target(name, code, word, **change):
    @rule(f"4.5: {name}", code, word, keeps=False)
    def broken(repository, world):
        repository.signed["targets"]["targets"]["sample/1"].update(change)
        repository.publish()
        world.registry.write()


target("an index a byte longer than it is", INTEGRITY, "bytes", length=10_000)
target("an index of another digest, which the registry lacks", NOT_FOUND, "404", hashes={"sha256": "0" * 64})
target("an index without a SHA-256", TRUST_CODE, "no SHA-256", hashes={"sha512": "0" * 128})
target("an index with no hash", TRUST_CODE, "", hashes={})
target("a SHA-256 that is a path", TRUST_CODE, "no SHA-256", hashes={"sha256": "../" * 21 + "x"})
target("an index of 2^63 bytes", INTEGRITY, "expected at most", length=1 << 63)
target("a reason with an escape", TRUST_CODE, "took it back", custom={"yanked": "\x1b[2Jgone"})


NO_VARIANT = 3


# Advisories: what they say is checked as the document is read; the state before stays.
def advisory(name, code, word, keeps=True, **members):
    @rule(f"advisory: {name}", code, word, keeps=keeps)
    def broken(_repository, world):
        world.registry.advise(**members)


advisory("it refuses the version", NO_VARIANT, "KA-1: wrong sums", keeps=False, package="sample")
advisory("it warns", OK, "KA-1: wrong sums", action="warn", versions={"from": 1, "to": 1})
advisory("of another package", OK, "", package="other*")
advisory("of another version", OK, "", versions={"from": 2})
advisory("of another variant", OK, "", variants=["sha256:" + "0" * 64])
advisory("of a GPU", OK, "", gpus=["9.0"])
advisory("it was lifted", OK, "", lifted="2026-11-27T00:00:00Z")
advisory("of a newer schema", OK, "", schema="kiln.advisory/2", action="explode")
advisory("of no schema", TRUST_CODE, "schema", schema="kiln.advice/1")
advisory("with a member that is misspelt", TRUST_CODE, "which Kiln", varaints=["cpu-base"])
advisory("with another action", TRUST_CODE, "expected \"warn\" or \"refuse\"", action="explode")
advisory("without a text", TRUST_CODE, "text", text=None)
advisory("a text of 2 kB", TRUST_CODE, "at most 300 bytes", text="x" * 2000)
advisory("a text with an escape", TRUST_CODE, "one line of text", text="\x1b[2Jgone")
advisory("a link to another scheme", TRUST_CODE, "an https:// address", link="javascript:alert(1)")
advisory("a time that is none", TRUST_CODE, "expected a time", published="yesterday")
advisory("a package that is a path", TRUST_CODE, "a package's name", package="../sample")
advisory("versions that end before they begin", TRUST_CODE, "ends before it begins", versions={"from": 3, "to": 1})
advisory("of drivers, which concern no CPU variant", OK, "", drivers={"from": "570.86"})
advisory("drivers of CUDA's versions", TRUST_CODE, "not CUDA's", drivers={"to": "12.4"})
advisory("a range of nothing", TRUST_CODE, "neither", drivers={})
advisory("no variants", TRUST_CODE, "has 0 entries", variants=[])
advisory("5000 variants", TRUST_CODE, "expected 1 to 4096", variants=["cpu-base"] * 5000)
advisory("65 GPUs", TRUST_CODE, "has 65 entries", gpus=["9.0"] * 65)
advisory("an id with a slash", TRUST_CODE, "letters, digits", id="../KA")


@rule("advisory: a thousand and one of them", TRUST_CODE, "more than 1000 advisories")
def many_advisories(_repository, world):
    for number in range(1001):
        world.registry.metadata.add_target(f"kiln.advisories/{number}", b"x")
        world.registry.metadata.signed["targets"]["targets"][f"kiln.advisories/{number}"]["custom"] = {"advisory": {
            "schema": "kiln.advisory/1", "id": str(number), "text": "x", "action": "warn",
            "published": "2026-11-26T00:00:00Z"}}
    world.registry.metadata.publish()
    world.registry.write()


@rule("advisory: another id than its name", TRUST_CODE, "expected the name's")
def other_id(_repository, world):
    world.registry.advise()
    targets = world.registry.metadata.signed["targets"]["targets"]
    targets["kiln.advisories/KA-2"] = targets.pop("kiln.advisories/KA-1")
    world.registry.metadata.release()
    world.registry.write()


# 4.5: delegations.
def delegated(name, code, word):
    """sample/1 is left to others: the top level says nothing of it."""
    def add(delegate):
        @rule(f"4.5: {name}", code, word, keeps=False)
        def broken(repository, world):
            said = repository.signed["targets"]["targets"].pop("sample/1")
            delegate(repository, said)
            repository.publish()
            world.registry.write()
        return broken
    return add


def speaks(repository, role, said, **how):
    repository.delegate(role, **how)
    repository.signed[role]["targets"]["sample/1"] = said


@delegated("a role that may speak of it", OK, "")
def may(repository, said):
    speaks(repository, "acme", said, paths=["sample/*"])


@delegated("a role that may speak of others alone", NOT_FOUND, "does not speak of it")
def may_not(repository, said):
    speaks(repository, "acme", said, paths=["other/*"])


@delegated("the second role, behind a terminating one", NOT_FOUND, "does not speak of it")
def terminated(repository, said):
    repository.delegate("first", paths=["sample/*"], terminating=True)
    speaks(repository, "second", said, paths=["sample/*"])


@delegated("a role signed by another's key", TRUST_CODE, "signed by 0")
def another_key(repository, said):
    speaks(repository, "acme", said, paths=["sample/*"])
    repository.signers["acme"] = [CryptoSigner.generate_ed25519()]


@delegated("a cycle of two", NOT_FOUND, "does not speak of it")
def cycle(repository, _):
    repository.delegate("one", paths=["*/*"])
    repository.delegate("two", parent="one", paths=["*/*"])
    repository.delegate("one", parent="two", paths=["*/*"])


@delegated("a chain of 40, of which 32 are asked", NOT_FOUND, "does not speak of it")
def chain(repository, said):
    parent = "targets"
    for number in range(40):
        repository.delegate(f"link{number}", parent=parent, paths=["*/*"])
        parent = f"link{number}"
    repository.signed[parent]["targets"]["sample/1"] = said


for TAKEN in ("root", "snapshot", "timestamp", "targets", ""):
    @delegated(f"a role called {TAKEN!r}", TRUST_CODE, "is not a name for a delegated role")
    def taken(repository, said, name=TAKEN):
        repository.delegate("acme", paths=["sample/*"])
        repository.signed["targets"]["delegations"]["roles"][0]["name"] = name


@delegated("a role called ../../x", OK, "")
def climbing(repository, said):
    speaks(repository, "../../x", said, paths=["sample/*"])


@delegated("a role whose name fills no file's name", TRUST_CODE, "expected at most 200")
def long_name(repository, said):
    speaks(repository, "x" * 201, said, paths=["sample/*"])


@delegated("a pattern of 2000 stars", NOT_FOUND, "does not speak of it")
def stars(repository, said):
    speaks(repository, "acme", said, paths=["*a" * 2000 + "b"])


# The artifact in which the documents travel.
def carried(name, code, word, change):
    @rule(f"artifact: {name}", code, word)
    def broken(repository, world):
        repository.publish()
        world.registry.write(change)


def timestamp_of(manifest):
    [layer] = [each for each in manifest["layers"] if "timestamp.json" in each["annotations"].values()]
    return layer


def with_timestamp(**members):
    def change(manifest):
        timestamp_of(manifest).update(members)
        return manifest
    return change


carried("data of other bytes", INTEGRITY, "is not what the descriptor promises",
        with_timestamp(data=base64.b64encode(b"{}").decode()))
carried("data that is no base64", INTEGRITY, "is not base64", with_timestamp(data="%%%%"))
carried("a digest that is a path", INTEGRITY, "", with_timestamp(digest="sha256:../../../etc/passwd"))
carried("a blob that is not there", NOT_FOUND, "404", with_timestamp(digest="sha256:" + "0" * 64))
carried("a title twice", INTEGRITY, "title of another one", lambda m: m | {"layers": m["layers"] * 2})
carried("a layer without a title", INTEGRITY, "", with_timestamp(annotations={}))
carried("4097 layers", INTEGRITY, "expected at most 4096", lambda m: m | {"layers": [
    timestamp_of(m) | {"annotations": {"org.opencontainers.image.title": str(i)}} for i in range(4097)]})
carried("layers of a terabyte", INTEGRITY, "in all", with_timestamp(size=1 << 40))
carried("an index in its place", INTEGRITY, "", lambda m: {
    "schemaVersion": 2, "mediaType": forge.INDEX_TYPE, "manifests": []})


def spelled_url(box):
    """However its URL is written, a registry has one root and one state."""
    world = World(box)
    world.install(OK, "")
    before = world.keep_metadata()
    world.registry.vouch(world.good)
    host = box.registry.removeprefix("http://")
    for url in (f"http://{host}/", f"http://{host}//", f"http://{host}/x/.."):
        box.registry = url
        world.install(OK, "")
    require(len(list(box.cache.glob("tuf/*"))) == 1, "several states")
    before()
    world.install(TRUST_CODE, "is older than")
    for url in (f"http://{host}/x", f"https://{host}", f"http://localhost:{host.partition(':')[2]}"):
        box.registry = url  # another one: the root says nothing of it
        world.install(TRUST_CODE, "no root of it is trusted")
    for url, word in ((f"http://user@{host}", "which Kiln never sends"), (f"HTTP://{host}", "expected a folder")):
        box.registry = url
        world.install(USAGE, word)


def encrypted_key(box):
    """A PEM key that asks for a passphrase must not make Kiln ask for it, with a terminal there."""
    world = World(box)
    key = key_entry(CryptoSigner.generate_rsa())
    first, *rest = key["keyval"]["public"].strip().split("\n")
    key["keyval"]["public"] = "\n".join([first, "Proc-Type: 4,ENCRYPTED", f"DEK-Info: AES-256-CBC,{'0' * 32}", "",
                                         *rest, ""])
    repository = world.registry.metadata
    root = repository.signed["root"]
    root["keys"]["ab"] = key
    root["roles"]["root"]["keyids"].append("ab")
    signed = json.loads(envelope(root, repository.signers["root"]))
    signed["signatures"].insert(0, {"keyid": "ab", "sig": "00" * 256})
    path = box.notes / "encrypted.json"
    path.write_text(json.dumps(signed))
    primary, secondary = pty.openpty()
    process = subprocess.Popen([KILN, "trust", "add", "https://registry.invalid", "--root", path], stdin=secondary,
                               stdout=secondary, stderr=secondary, env=box.environment, start_new_session=True,
                               preexec_fn=lambda: os.close(os.open(os.ttyname(secondary), os.O_RDWR)))
    os.close(secondary)
    said, end = b"", time.monotonic() + 20
    while process.poll() is None and time.monotonic() < end and b"pass phrase" not in said:
        if select.select([primary], [], [], 0.1)[0]:
            try:
                said += os.read(primary, 65536)
            except OSError:  # the other end is closed
                break
    process.kill() if b"pass phrase" in said else process.wait(timeout=20)
    os.close(primary)
    require(b"pass phrase" not in said and process.wait() == OK, said.decode())


CASES.append(("5: a registry's state, however its URL is written", spelled_url))
CASES.append(("a key in PEM that asks for a passphrase", encrypted_key))

if __name__ == "__main__":
    run_table("rules", CASES)
