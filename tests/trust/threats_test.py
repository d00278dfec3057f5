#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every row of the table in SECURITY.md, performed against the real command: a signed registry on a server
that lies, and a user who trusts its root. Prints what was done, the exit code and the text; fails where
it is another one, where a library was loaded that should not be, or where a row of the table is not here.

    threats [PART OF A ROW]     wants KILN_BIN, KILN_LAUNCH and KILN_MARKER_LIBRARY, as tests/hostile does
"""

import concurrent.futures
import json
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "hostile")]
from sandbox import INTEGRITY, LIBRARY, NOT_FOUND, OK, Broken, Sandbox, forge, require  # noqa: E402
from clock import later  # noqa: E402
from misbehave import Server, drip  # noqa: E402
from repository import PAST  # noqa: E402
from securesystemslib.signer import CryptoSigner  # noqa: E402
from signed_registry import TRUST  # noqa: E402
from world import NETWORK, QUICK, TRUST_CODE, World  # noqa: E402

CONFLICT, NO_VARIANT = 16, 3
ATTACKS = []  # (row, what was done, function of a World)
INDEX, METADATA, BLOB = "/manifests/sha256", f"/{TRUST}/", "/sample/blobs/"


def attack(row, done):
    def add(function):
        ATTACKS.append((row, done, function))
        return function
    return add


OTHER_BYTES = "the registry or a mirror serves other bytes"


@attack(OTHER_BYTES, "a layer of as many other bytes")
def other_layer(world):
    def flip(c):
        return c.answer(200, body=bytes(len(c.body))) if len(c.body) > 5000 else c.honest()
    world.meddle(BLOB, flip)
    world.install(INTEGRITY, "digest is")


@attack(OTHER_BYTES, "an index that nobody signed, under the digest that is signed")
def other_index(world):
    evil = world.evil()
    world.meddle(INDEX, lambda c: c.answer(200, body=evil))
    world.install(INTEGRITY, "digest is")


@attack(OTHER_BYTES, "a tag that names other code, which nobody signed")
def arbitrary_install(world):
    world.evil()
    world.install(OK, "")
    world.loads_good()


@attack(OTHER_BYTES, "other code, signed by keys of the attacker")
def arbitrary_install_signed(world):
    for role in ("timestamp", "snapshot", "targets"):
        world.registry.metadata.signers[role] = [CryptoSigner.generate_ed25519()]
    world.registry.vouch(world.evil())
    world.install(TRUST_CODE, "signed by 0 of the keys that may")


@attack(OTHER_BYTES, "a root of the attacker as the next one")
def next_root(world):
    metadata = world.registry.metadata
    for role in metadata.signers:
        metadata.signers[role] = [CryptoSigner.generate_ed25519()]
    metadata.rotate("root")
    world.registry.vouch(world.evil())
    world.install(TRUST_CODE, "signed by 0 of the keys that may")


@attack(OTHER_BYTES, "a mirror has signed metadata of its own, and other code")
def lying_mirror(world):
    with Sandbox() as other:
        forged = World(other)
        forged.registry.vouch(forged.evil())
        world.settings(mirrors={world.box.registry: [other.registry]})
        done = world.install(OK, "is left")
        require("signed by 0 of the keys that may" in done.output, done.output)
        world.loads_good()


@attack(OTHER_BYTES, "a folder of another registry, signed by others, in this one's place")
def another_registry(world):
    with Sandbox() as other:
        forged = World(other)
        forged.registry.vouch(forged.evil())
        world.install(TRUST_CODE, "signed by 0 of the keys that may", "--from", str(other.root))


NAMES = "it serves package A as package B, or version 1 as 2"


@attack(NAMES, "the signed targets with another name in them")
def renamed_target(world):
    metadata = world.registry.metadata
    metadata.add_target("simple/1", world.evil(name="simple"))
    metadata.release()
    metadata.files[metadata.name("targets")] = metadata.bytes("targets").replace(b"simple/1", b"sample/1")
    world.registry.write()
    world.install(TRUST_CODE, "its signer promises")


@attack(NAMES, "another package's index, signed under this name")
def name_swap(world):
    evil = world.evil(name="other")
    world.registry.vouch(evil)
    (world.box.root / "sample/blobs/sha256" / forge.digest_of(evil)[7:]).write_bytes(evil)
    world.install(INTEGRITY, "it is the one of other@1")


@attack(NAMES, "the index of version 1, signed as version 2")
def version_swap(world):
    world.registry.vouch(world.good, version=2)
    world.install(INTEGRITY, "it is the one of sample@1", spec="sample@2")


@attack(NAMES, "a version that the targets do not name, though the registry has it")
def unnamed(world):
    world.evil(version=2)
    world.install(NOT_FOUND, "its signed metadata does not speak of it", spec="sample@2")


ROLLBACK = "it serves an older state than one seen before"


@attack(ROLLBACK, "all of the metadata of before")
def rollback(world):
    before = world.keep_metadata()
    world.registry.vouch(world.good)
    world.install(OK, "")
    before()
    world.install(TRUST_CODE, "is older than")
    world.loads_good()


@attack(ROLLBACK, "a newer timestamp, signed, of an older snapshot")
def snapshot_rollback(world):
    world.registry.vouch(world.good)
    world.install(OK, "")
    trusted = world.state("timestamp").read_bytes()
    metadata = world.registry.metadata
    metadata.signed["timestamp"]["version"] += 1
    metadata.signed["snapshot"]["version"] -= 1
    metadata.publish()
    world.registry.write()
    world.install(TRUST_CODE, "it names snapshot")
    require(world.state("timestamp").read_bytes() == trusted, "the refused timestamp was kept")


@attack(ROLLBACK, "a newer snapshot, signed, of older targets")
def targets_rollback(world):
    world.registry.vouch(world.good)
    world.install(OK, "")
    metadata = world.registry.metadata
    for role, step in (("timestamp", 1), ("snapshot", 1), ("targets", -1)):
        metadata.signed[role]["version"] += step
    metadata.publish()
    world.registry.write()
    world.install(TRUST_CODE, "it names version")


FREEZE = "it serves one old state for ever"


@attack(FREEZE, "the same state, for longer than it holds")
def freeze(world):
    for role in ("timestamp", "snapshot"):
        expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86400))
        world.registry.metadata.signed[role]["expires"] = expires
    world.registry.vouch(world.good)
    world.install(OK, "")
    world.install(TRUST_CODE, "expired at", prefix=later(3 * 86400))
    world.loads_good()  # what is installed goes on to work


@attack(FREEZE, "a state that had expired before a new user asks")
def expired(world):
    world.registry.metadata.signed["timestamp"]["expires"] = PAST
    world.registry.vouch(world.good)
    world.install(TRUST_CODE, "expired at 2001-01-01")


BEHIND = "a mirror serves an old state that still holds"


@attack(BEHIND, "a version that was taken back since")
def yanked_behind_a_mirror(world):
    with Sandbox() as other:
        shutil.copytree(world.box.root, other.root)
        world.settings(mirrors={world.box.registry: [str(other.root)]})
        world.registry.vouch(world.good, yanked="it computes nonsense")
        done = world.install(TRUST_CODE, "it computes nonsense")
        require("is behind: its timestamp is" in done.output, done.output)


MIX = "it mixes documents of several states"


def mixed(role):
    def run(world):
        metadata = world.registry.metadata
        old = metadata.bytes(role)
        world.registry.vouch(world.good, version=2)
        metadata.files[metadata.name(role)] = old
        world.registry.write()
        world.install(TRUST_CODE, "its signer promises")
    return run


for ROLE in ("snapshot", "targets"):
    attack(MIX, f"the {ROLE} of the state before, the rest of the newest")(mixed(ROLE))


@attack(MIX, "targets of before, where the snapshot names versions alone")
def mixed_without_hashes(world):
    metadata = world.registry.metadata
    old = metadata.bytes("targets")
    world.registry.vouch(world.good, version=2)
    for field in ("length", "hashes"):
        del metadata.signed["snapshot"]["meta"]["targets.json"][field]
    metadata.publish_snapshot()
    metadata.files[metadata.name("targets")] = old
    world.registry.write()
    world.install(TRUST_CODE, "the snapshot names")


SIZE = "it sends bytes without end, or very slowly"


def pour(connection):
    connection.send("HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(2000):
        if not connection.send(b" " * 65536):
            return


@attack(SIZE, "metadata without end")
def endless_metadata(world):
    world.meddle(f"{TRUST}/manifests/latest", pour)
    world.install(INTEGRITY, "more than 4194304 bytes")


@attack(SIZE, "a timestamp that promises a gigabyte")
def large_timestamp(world):
    def enlarge(manifest):
        for layer in manifest["layers"]:
            if "timestamp.json" in layer["annotations"].values():
                layer["size"] = 1 << 28
        return manifest
    world.registry.write(enlarge)
    world.install(INTEGRITY, "that trust metadata may have in all")


@attack(SIZE, "a timestamp that promises more than one may have")
def larger_timestamp(world):
    def enlarge(manifest):
        for layer in manifest["layers"]:
            if "timestamp.json" in layer["annotations"].values():
                layer["size"] = 16_385
        return manifest
    world.registry.write(enlarge)
    world.install(TRUST_CODE, "expected at most 16384")


@attack(SIZE, "an index without end")
def endless_index(world):
    world.meddle(f"/sample{INDEX}", pour)
    world.install(INTEGRITY, "more than the")


@attack(SIZE, "a byte a second of metadata")
def slow_metadata(world):
    world.meddle(f"{TRUST}/manifests/latest", drip)
    world.install(NETWORK, "gave up after")


@attack(SIZE, "a byte a second of a layer, by a server that never stalls for long")
def slow_layer(world):
    world.settings(network=QUICK | {"stall_seconds": 600, "deadline_seconds": 2})
    world.meddle(BLOB, drip)
    world.install(NETWORK, "the time for it is over")


STOLEN = "a signing key is stolen"


@attack(STOLEN, "the publisher names other online and targets keys; the thief signs on with the old ones")
def rotation(world):
    world.install(OK, "")
    metadata = world.registry.metadata
    stolen = dict(metadata.signers)
    metadata.rotate("timestamp", "snapshot", "targets")
    world.registry.vouch(world.good)
    world.install(OK, "")
    metadata.signers.update({role: stolen[role] for role in ("timestamp", "snapshot", "targets")})
    world.registry.vouch(world.evil())
    world.install(TRUST_CODE, "signed by 0 of the keys that may")
    world.loads_good()


@attack(STOLEN, "what the thief signed is installed already when the publisher names other keys")
def recovery(world):
    evil = world.evil()
    world.registry.vouch(evil)
    world.install(OK, "")
    world.registry.metadata.rotate("timestamp", "snapshot", "targets")
    world.registry.vouch(world.good)
    world.install(OK, "")
    world.loads_good()


@attack(STOLEN, "a root key of two, and the thief names himself with it alone")
def one_of_two(world):
    metadata = world.registry.metadata
    metadata.signers["root"].append(CryptoSigner.generate_ed25519())
    metadata.thresholds["root"] = 2
    metadata.appoint()
    world.trust(metadata.write("root"))
    world.registry.write()
    world.install(OK, "")
    metadata.signers["root"] = metadata.signers["root"][:1]
    metadata.rotate("targets", "timestamp", "snapshot")
    world.registry.vouch(world.evil())
    world.install(TRUST_CODE, "signed by 1 of the keys that may, expected 2")


FORWARD = "a stolen key signs a version that nothing can follow"


@attack(FORWARD, "timestamp and snapshot of version 2^62; then the publisher names other keys")
def fast_forward(world):
    metadata = world.registry.metadata
    for role in ("timestamp", "snapshot"):
        metadata.signed[role]["version"] = 1 << 62
    metadata.publish()
    world.registry.write()
    world.install(OK, "")
    for role in ("timestamp", "snapshot"):
        metadata.signed[role]["version"] = 3
    metadata.publish()
    world.registry.write()
    world.install(TRUST_CODE, "is older than")
    metadata.rotate("timestamp", "snapshot")
    metadata.publish()
    world.registry.write()
    world.install(OK, "")


@attack("a server offers a publisher forged metadata to sign on", "a root that names the publisher's own keys")
def forged_onto(world):
    box = world.box
    box.environment["KILN_KEY_PASSPHRASE"] = "x"

    def registry(*words, code=OK):
        done = box.kiln("registry", *map(str, words))
        require(done.code == code, done.output)
        return done
    keys = box.notes
    for name in ("root", "targets", "online"):
        registry("key", keys / name)
    mine = box.notes / "mine"
    shutil.copytree(box.root / "sample", mine / "sample")
    for name, days in (("1.root.json", 365), ("forged.json", 9)):
        registry("init", "--root-key", keys / "root.pub", "--targets-key", keys / "targets.pub", "--online-key",
                 keys / "online.pub", "--root-days", days, "--out", keys / name)
        registry("sign", keys / name, "--key", keys / "root")
    signing = ("sign", "--registry", mine, "--key", keys / "targets", "--key", keys / "online")
    registry(*signing, "--root", keys / "forged.json")
    shutil.rmtree(box.root / TRUST)
    shutil.move(mine / TRUST, box.root / TRUST)
    done = registry(*signing, "--root", keys / "1.root.json", "--onto", box.registry, code=CONFLICT)
    world.seen.append((done.code, done.output))


PLANTED = "someone writes a false reference into the cache"


def plant(world):
    """As an install from a folder of other code leaves it, for this registry."""
    box = world.box
    evil = box.work / "evil"
    forge.Package(evil, files={"LICENSE": b"x\n", "lib/libsample.so": LIBRARY + b"evil"}).publish()
    done = box.kiln("install", "sample@1", "--device", "cpu", "--registry", str(evil),
                    environment={"KILN_UNSIGNED": str(evil)})
    require(done.code == OK, done.output)
    [planted] = box.cache.glob("refs/*/sample/1.json")
    ref = json.loads(planted.read_bytes()) | {"registry": box.registry}
    shutil.rmtree(planted.parents[1])
    world.install(OK, "")
    [place] = box.cache.glob("refs/*/sample/1.json")
    place.chmod(0o644)
    place.write_text(json.dumps(ref))


@attack(PLANTED, "beside the metadata that was seen")
def planted(world):
    plant(world)
    world.loads_good()
    world.install(OK, "")
    world.loads_good()


@attack(PLANTED, "where no metadata was seen yet")
def planted_first(world):
    plant(world)
    shutil.rmtree(world.box.cache / "tuf")
    world.install(OK, "")
    world.loads_good()


TAMPERED = "someone exchanges a file of the cache"


def tampered(pattern, code, word):
    def run(world):
        world.install(OK, "")
        for path in world.box.cache.glob(pattern):
            path.chmod(0o644)
            path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
        done = world.box.expect(code, word)  # get_kernel
        world.seen.append((done.code, done.output))
        require(world.box.kiln("cache", "repair").code == OK, "repair")
        world.loads_good()
    return run


attack(TAMPERED, "the library")(tampered("unpacked/*/lib/*", INTEGRITY, "digest is"))
attack(TAMPERED, "every document and layer")(tampered("blobs/sha256/*", INTEGRITY, "digest is"))
attack(TAMPERED, "the metadata, which is then asked for again")(tampered("tuf/*/targets.json", OK, ""))

REDIRECT = "a redirect leads to plain http, a file or another scheme"


def with_tls(world):
    box = world.box
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
                    "subjectAltName=IP:127.0.0.1"], cwd=box.notes, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(box.notes / "cert.pem", box.notes / "key.pem")
    plain, box.server = box.server, Server(box.root, context=context)
    box.registry = f"https://127.0.0.1:{box.server.port}"
    box.environment["SSL_CERT_FILE"] = str(box.notes / "cert.pem")
    world.trust()
    return plain


@attack(REDIRECT, "from https to the same bytes by http")
def downgrade(world):
    plain = with_tls(world)
    world.meddle(BLOB, lambda c: c.answer(302, f"Location: http://127.0.0.1:{plain.port}{c.path}"))
    world.install(NETWORK, "redirects to http://127.0.0.1")
    require(not plain.asked, "it was followed")
    plain.close()


def redirected(part, target):
    def run(world):
        world.meddle(part, lambda c: c.answer(302, f"Location: {target}"))
        world.install(NETWORK, "redirects to")
    return run


for TARGET in ("file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x", "http://192.0.2.1/x"):
    for PART in (METADATA, BLOB):
        attack(REDIRECT, f"{'metadata' if PART == METADATA else 'a blob'}: {TARGET}")(redirected(PART, TARGET))


@attack("a redirect leads to another server", "metadata and index to a server of the attacker")
def elsewhere(world):
    with Sandbox() as other:
        forged = World(other)
        forged.registry.vouch(forged.evil())
        world.meddle("/v2/", lambda c: c.answer(307, f"Location: {other.registry}{c.path}"))
        world.install(TRUST_CODE, "signed by 0 of the keys that may")


@attack("a redirect leads to another server", "a layer to a server that has another one")
def layer_elsewhere(world):
    other = Server(world.box.root, "", lambda c: c.answer(200, body=b"x" * 30_000))
    world.meddle(BLOB, lambda c: c.answer(307, f"Location: http://127.0.0.1:{other.port}{c.path}"))
    world.install(INTEGRITY, "more than the")
    other.close()


YANKED = "a version turns out to be bad"


@attack(YANKED, "its publisher yanks it")
def yanked(world):
    world.install(OK, "")
    world.registry.vouch(world.good, yanked="wrong sums")
    world.install(TRUST_CODE, "its publisher took it back: \"wrong sums\"")
    for environment in ({}, {"KILN_OFFLINE": "1"}):
        world.box.expect(TRUST_CODE, "wrong sums", environment=environment)


@attack(YANKED, "it is locked: the lock file is believed, and no lock takes it anew")
def yanked_and_locked(world):
    lock = world.box.notes / "kiln.lock"
    words = ("lock", "sample@1", "--registry", world.box.registry, "--lock", str(lock))
    require(world.box.kiln(*words).code == OK, "lock")
    world.registry.vouch(world.good, yanked="wrong sums")
    for environment in ({}, {"KILN_OFFLINE": "1"}):
        world.box.expect(OK, "loads", environment=environment | {"KILN_LOCK": str(lock)})
    lock.unlink()
    done = world.box.kiln(*words)
    world.seen.append((done.code, done.output))
    require(done.code == TRUST_CODE and "wrong sums" in done.output, done.output)


ADVISED = "some of a version's binaries turn out to be bad"


@attack(ADVISED, "its publisher signs an advisory: refused at the next refresh, then offline, and where it is locked")
def advised(world):
    lock = world.box.notes / "kiln.lock"
    words = ("lock", "sample@1", "--registry", world.box.registry, "--lock", str(lock))
    require(world.box.kiln(*words).code == OK, "lock")
    world.install(OK, "")
    world.registry.advise(package="sample", link="https://example.org/1")
    world.loads_good()  # nobody has asked yet
    world.install(NO_VARIANT, "KA-1: wrong sums (https://example.org/1)")
    for environment in ({}, {"KILN_OFFLINE": "1"}, {"KILN_LOCK": str(lock)}, {"KILN_LOCK": str(lock), "KILN_OFFLINE": "1"}):
        world.box.expect(NO_VARIANT, "KA-1: wrong sums", environment=environment)
    world.registry.advise(package="sample", lifted="2026-11-27T00:00:00Z")
    world.install(OK, "")
    world.loads_good()


@attack(ADVISED, "the state before it is served again")
def advisory_rolled_back(world):
    world.install(OK, "")
    before = world.keep_metadata()
    world.registry.advise()
    world.install(NO_VARIANT, "KA-1")
    before()
    world.install(TRUST_CODE, "is older than")
    world.box.expect(NO_VARIANT, "KA-1", environment={"KILN_OFFLINE": "1"})


@attack(ADVISED, "a stranger signs one: the state before stays")
def advisory_of_a_stranger(world):
    world.install(OK, "")
    world.registry.metadata.signers["targets"] = [CryptoSigner.generate_ed25519()]
    world.registry.advise()
    world.install(TRUST_CODE, "signed by 0 of the keys that may")
    world.loads_good()


@attack(ADVISED, "a publisher signs one of everybody's packages: it speaks of that publisher's alone")
def advisory_of_a_publisher(world):
    metadata = world.registry.metadata
    metadata.delegate("acme", paths=["acme-*/*"])
    document = {"schema": "kiln.advisory/1", "id": "KA-1", "text": "buy acme", "action": "refuse",
                "published": "2026-11-26T00:00:00Z"}
    metadata.add_target("kiln.advisories/KA-1", b"x", "acme")
    metadata.signed["acme"]["targets"]["kiln.advisories/KA-1"]["custom"] = {"advisory": document}
    metadata.release()
    world.registry.write()
    world.install(OK, "")
    world.loads_good()


def rows_of_table():
    """The table below the heading Threats: each attack, and the exit codes in what is said of it."""
    text = (HERE.parents[1] / "SECURITY.md").read_text().partition("## Threats")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)[1:]
    return {row: {int(code) for codes in re.findall(r"\(([0-9, ]+)\)", says) for code in codes.split(", ")}
            for row, says in rows}


def perform(each):
    row, done, function = each
    world = None
    try:
        with Sandbox() as box:
            world = World(box)
            function(world)
            box.check_cache()
        return row, done, world.seen, None
    except Broken as problem:
        return row, done, world.seen if world else [], str(problem)
    except Exception:  # the case itself is wrong
        return row, done, world.seen if world else [], traceback.format_exc()


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    start = time.monotonic()
    table = rows_of_table()
    problems = [f"SECURITY.md has a row that is not performed: {row}" for row in table
                if row not in [each[0] for each in ATTACKS]]
    problems += [f"SECURITY.md lacks the row: {each[0]}" for each in ATTACKS if each[0] not in table]
    chosen = [each for each in ATTACKS if wanted in each[0]]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for row, done, seen, problem in pool.map(perform, chosen):
            code, text = seen[-1] if seen else ("-", "")
            refused = [each for each in seen if each[0] != OK]
            if refused:
                code, text = refused[-1]
            last = text.strip().splitlines()[-1] if code == OK and text.strip() else text.strip()
            print(f"{row} | {done} | {code} | {last[:160]}")
            told = {each[0] for each in refused} - table.get(row, set())
            if told:
                problems.append(f"{row}: {done}: SECURITY.md does not tell of exit code {told}")
            if problem:
                problems.append(f"{row}: {done}: {problem.strip()[-1500:]}")
    for problem in problems:
        print("FAILED:", problem)
    print(f"threats: {len(chosen)} attacks of {len({each[0] for each in chosen})} rows, {len(problems)} went "
          f"otherwise; {time.monotonic() - start:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    if not shutil.which("openssl"):
        print("skipped: openssl is not installed; run ci/setup test")
        sys.exit(77)
    sys.exit(main())
