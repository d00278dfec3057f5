#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every kind of document that Kiln reads, each made as large, as deep and as long as its reader lets
it, by the road that a user's would come: what it costs in memory, and how long the error is."""

import copy
import functools
import io
import itertools
import json
import os
import tarfile

from sandbox import OK, SANITIZED, require, run_table  # first: it says where forge is
import forge
from forge import dump
from sampling import every_nth

MEMORY = 64 << 20
TEXT = 4 << 10
INTERNAL = 1
MOST = 4 << 20  # of a document
CASES = []
KINDS = itertools.count()


def fill(name, piece, end=b"]", start=b"["):
    """A member of as many of these as a document may have bytes."""
    count = (MOST - 4096) // len(piece)
    return lambda good: b'{"' + name + b'":' + start + (piece * count)[:-1] + end + b"," + good[1:]


def many_keys(good):
    keys = b",".join(b'"k%d":0' % i for i in range(350_000))
    return b"{" + keys + b"," + good[1:]


# Of the bytes of a good object.
SHAPES = {
    "a string of 4 MB": lambda good: b'{"x":"' + b"x" * (MOST - 4096) + b'",' + good[1:],
    "a string of escapes": fill(b"x", b"\\u0001", b'"', b'"'),
    "a key of 1 MB, twice": lambda good: (b'{"' + b"k" * 1_000_000 + b'":0,"' + b"k" * 1_000_000
                                          + b'":0,' + good[1:]),
    "empty lists": fill(b"x", b"[],"),
    "empty objects": fill(b"x", b"{},"),
    "empty strings": fill(b"x", b'"",'),
    "numbers": fill(b"x", b"0,"),
    "long strings": fill(b"x", b'"0123456789012345678901234567890123456789",'),
    "350,000 keys": many_keys,
    "a million levels": lambda good: b'{"x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"," + good[1:],
    "a million levels of objects": lambda good: b'{"x":' * 800_000,
    "a number of 1 MB": lambda good: b'{"x":' + b"9" * 1_000_000 + b"," + good[1:],
    "100 MB of spaces": lambda good: good[:-1] + b" " * 100_000_000 + b"}",
    "no JSON, 3 MB": lambda good: b"x" * 3_000_000,
    "no JSON, escapes": lambda good: b"\x1b[2J" * 500_000,
}


def places(value, path=()):
    """The path of every member and element."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(
        value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from places(each, (*path, key))


def at(document, path):
    for key in path:
        document = document[key]
    return document


def put(document, path, value):
    document = copy.deepcopy(document)
    at(document, path[:-1])[path[-1]] = value
    return document


def spoilt_members(good):
    """Names and makers of the bytes: each member's value, and the names in it, too long or too many."""
    document = json.loads(good)

    def become(path, make):
        return lambda: dump(put(document, path, make(at(document, path))))

    def named_anew(name):
        return lambda value: value | {name: next(iter(value.values()))}

    def repeated(value):
        return value[:1] * ((MOST - len(good)) // (len(dump(value[0])) + 1))

    def many(value):
        one = next(iter(value.values()))
        most = min(100_000, (MOST - len(good)) // (len(dump(one)) + 10))
        return value | {f"k{i}": one for i in range(most)}

    for path in places(document):
        where = ".".join(map(str, path))[-60:]
        value = at(document, path)
        yield f"{where}: a string of 1 MB", become(path, lambda _: "x" * 1_000_000)
        if isinstance(value, str):
            yield f"{where}: 1 MB more", become(path, lambda value: value + "x" * 1_000_000)
            yield f"{where}: escapes", become(path, lambda _: "\x1b" * 100_000)
        elif isinstance(value, list) and value:
            yield f"{where}: 4 MB of the first", become(path, repeated)
            yield f"{where}: zeros", become(path, lambda _: [0] * 1_900_000)
        elif isinstance(value, dict) and value:
            yield f"{where}: a name of 1 MB", become(path, named_anew("x" * 1_000_000))
            yield f"{where}: a name of escapes", become(path, named_anew("\x1b" * 100_000))
            yield f"{where}: 100,000 members", become(path, many)


def bounded(box, run):
    """An end that is typed, in bounds. Whatever was read may be good, too: that is not the point."""
    require(run.code != INTERNAL and 0 <= run.code <= 130 and run.code not in (124, 125, 126, 127, 128),
            f"exit {run.code}: {run.output[:500]}")
    require(run.code == OK or len(run.output) <= TEXT, f"{len(run.output)} bytes of text: {run.output[:300]}")
    box.refused = run.code != OK
    box.cost["memory"] = max(box.cost["memory"], run.memory)
    require(SANITIZED or run.memory <= MEMORY, f"{run.memory} bytes of memory")


def document(kind, good, members=True):
    """Registers a kind of document: `deliver(box, bytes)` runs the command that reads it."""
    def add(deliver):
        def case(make, box):
            bounded(box, deliver(box, make()))
        # Where a share of the shapes is tried, the next kind has another one.
        shapes = [(name, functools.partial(spoil, good)) for name, spoil in SHAPES.items()]
        turn = next(KINDS) % len(shapes)
        spoilt = every_nth(shapes[turn:] + shapes[:turn], 1)
        if members and not SANITIZED:  # these ask for memory and text, which other tables do not
            spoilt += every_nth(spoilt_members(good), 5)
        for name, make in spoilt:
            CASES.append((f"{kind}: {name}", functools.partial(case, make)))
        return deliver
    return add


class Sample:
    """Good documents of one package, to be spoilt."""

    def __init__(self):
        class Nowhere(forge.Package):
            def put(self, data):
                return forge.digest_of(data)
        package = Nowhere("/nowhere", files={"LICENSE": b"x", "lib/libsample.so": b"x"})
        self.config = package.config
        self.manifest = package.manifest()
        manifest = dump(self.manifest)
        self.index = package.index([package.variant(manifest)])
        entry = package.descriptor(dump(self.index), forge.INDEX_TYPE)
        entry["annotations"] = {"org.opencontainers.image.ref.name": "1"}
        self.layout = {"schemaVersion": 2, "mediaType": forge.INDEX_TYPE, "manifests": [entry]}
        layer = self.manifest["layers"][0]
        self.lock = {"lockfileVersion": 1, "kernels": {"sample": {
            "registry": "/registry", "requested": {"version": 1},
            "index": {"digest": entry["digest"], "size": entry["size"]},
            "variants": {"cpu-base": {
                "manifest": {"digest": forge.digest_of(manifest), "size": len(manifest)},
                "config": {"digest": forge.digest_of(dump(self.config)), "size": 9},
                "layer": {"digest": layer["digest"], "size": layer["size"]},
                "library": {"path": "lib/libsample.so", "sha256": forge.digest_of(b"x")}}}}}}


GOOD = Sample()


def install(box, *arguments, **options):
    return box.kiln("install", "sample@1", "--device", "cpu", "--registry", box.registry, *arguments,
                    **options)


# A registry, as a server and as a folder.
def publish(box, kind, data):
    package = box.package()
    if kind == "config":
        package.config = data
    package.publish((lambda _: data) if kind == "manifest" else None,
                    (lambda _: data) if kind == "index" else None)


for kind in ("index", "manifest", "config"):
    @document(f"{kind} of a server", dump(getattr(GOOD, kind)))
    def of_server(box, data, kind=kind):
        publish(box, kind, data)
        box.serve()
        return install(box)

    @document(f"{kind} of a folder", dump(getattr(GOOD, kind)), members=False)
    def of_folder(box, data, kind=kind):
        publish(box, kind, data)
        return install(box)


@document("index.json of a folder", dump(GOOD.layout))
def of_layout(box, data):
    box.package().publish()
    (box.root / "sample/index.json").write_bytes(data)
    return install(box)


@document("oci-layout of a folder", b'{"imageLayoutVersion":"1.0.0"}')
def of_layout_mark(box, data):
    box.package().publish()
    (box.root / "sample/oci-layout").write_bytes(data)
    return install(box)


def answering(box, part, status, *headers):
    """A server that answers a part with these bytes."""
    def serve(data):
        box.package().publish()
        box.serve()
        box.server.part = part
        box.server.behave = lambda c: c.answer(status, *headers, body=data)
    return serve


@document("tags of a server", b'{"name":"sample","tags":["1","2","latest"]}')
def of_tags(box, data):
    answering(box, "/tags/", 200)(data)
    return box.kiln("install", "sample@7", "--registry", box.registry)


@document("an error of a server", b'{"errors":[{"code":"DENIED","message":"no","detail":{"x":1}}]}')
def of_error(box, data):
    answering(box, "/manifests/", 400, "Content-Type: application/json")(data)
    return install(box)


@document("token of a server", b'{"token":"abc","expires_in":60,"access_token":"abc"}')
def of_token(box, data):
    box.package().publish()
    box.serve()

    def behave(c):
        if c.path.startswith("/token"):
            return c.answer(200, body=data)
        return c.answer(401, "WWW-Authenticate: Bearer realm=\"http://127.0.0.1:"
                             f"{box.server.port}/token\",service=\"x\",scope=\"y\"")
    box.server.behave = behave
    return install(box)


# Files that a user names.
def named(box, name, data):
    path = box.notes / name
    path.write_bytes(data)
    return str(path)


@document("lock file", dump(GOOD.lock))
def of_lock(box, data):
    box.package().publish()
    return install(box, "--lock", named(box, "kiln.lock", data))


@document("requirements", b'{"schema":"kiln.requirements/1","registry":"/x","kernels":{"sample":{"version":1}}}')
def of_requirements(box, data):
    return box.kiln("lock", "--requirements", named(box, "kiln.json", data), "--lock",
                    str(box.notes / "kiln.lock"), "--registry", box.registry)


@document("settings", dump({"schema": "kiln.settings/1", "mirrors": {"https://a.example": ["/srv/a"]},
                            "deny": ["cpu-x"], "network": {"tries": 2, "deadline_seconds": 5}}))
def of_settings(box, data):
    box.package().publish()
    return install(box, environment={"KILN_CONFIG": named(box, "config.json", data)})


@document("facts of a host", dump({"schema": "kiln.host/1", "arch": "x86_64", "cpu": "x86-64-v3",
                                   "glibc": "2.36", "driver": "12.9", "gpus": [
                                       {"ordinal": 0, "name": "GPU", "capability": "9.0"}],
                                   "libraries": {"libx.so.1": True}}))
def of_host(box, data):
    box.package().publish()
    return box.kiln("resolve", "sample@1", "--registry", box.registry, "--host",
                    named(box, "host.json", data))


@document("logins", dump({"auths": {"127.0.0.1": {"auth": "YTpi"}}, "credHelpers": {"x": "y"},
                          "credsStore": "z"}))
def of_logins(box, data):
    box.package().publish()
    box.serve()
    box.server.behave = lambda c: c.answer(401, 'WWW-Authenticate: Basic realm="x"')
    named(box, "config.json", data)
    return install(box, environment={"DOCKER_CONFIG": str(box.notes)})


def archive(members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


BUNDLED = {"schemaVersion": 2, "mediaType": forge.INDEX_TYPE, "manifests": [
    GOOD.layout["manifests"][0] | {"annotations": {
        "org.opencontainers.image.ref.name": "sample-1", "dev.kiln.kernel": "sample",
        "org.opencontainers.image.version": "1"}}]}


@document("index.json of a bundle", dump(BUNDLED))
def of_bundle(box, data):
    bundle = named(box, "b.tar", archive({"oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
                                          "index.json": data}))
    return box.kiln("bundle", "install", bundle)


# What lies in a cache.
def installed(box):
    package = box.package()
    package.files["package.json"] = b"{}"
    package.publish()
    require(install(box).code == OK, "not installed")


def first(box, pattern):
    return next(path for path in sorted(box.cache.glob(pattern)) if path.is_file())


def replace(path, data):
    os.chmod(path, 0o644)
    path.write_bytes(data)


@document("ref of a cache", dump({"schema": "kiln.ref/1", "registry": "/x", "kernel": "sample",
                                  "version": 1, "index": {"digest": forge.digest_of(b"x"), "size": 1}}))
def of_ref(box, data):
    installed(box)
    replace(first(box, "refs/**/*.json"), data)
    return install(box)


@document("package.json of an installed variant", dump(
    {"schema": 1, "ops": [{"name": "f", "tensors": [{"name": "x"}, {"name": "y", "output": True}],
                           "attributes": [{"name": "a", "type": "float"}]}]}))
def of_schema(box, data):
    files = {"LICENSE": b"x", "lib/libsample.so": b"x", "package.json": data}
    forge.Package(box.root, files=files).publish()
    require(install(box).code == OK, "not installed")
    return box.kiln("info", "sample@1", "--registry", box.registry)


# Layers and answers that are no JSON.
def case(name):
    def add(function):
        CASES.append((name, lambda box: bounded(box, function(box))))
        return function
    return add


GIB = 1 << 30
LAYERS = {
    "zeros, 1 GiB of 32 kB": (lambda: forge.zstd_zeros(GIB), GIB),
    "zeros, 1 GiB, promised as little": (lambda: forge.zstd_zeros(GIB), 100),
    "a window of 4 GiB": (lambda: forge.zstd(b"\0" * 4096, window=0xb0), 100),
    "a window of 128 MiB": (lambda: forge.zstd(b"\0" * 4096, window=0x88), 100),
    "a name of 8 MB in PAX": (lambda: forge.zstd(forge.pax({"path": b"x" * 8_000_000})
                                                 + forge.tar_entry("x", b"x") + forge.TAR_END), 100),
    "a name of 8 MB as GNU writes it": (lambda: forge.zstd(
        forge.tar_entry("././@LongLink", b"x" * 8_000_000, kind=b"L") + forge.tar_entry("x", b"x")
        + forge.TAR_END), 100),
    "a link of 8 MB": (lambda: forge.zstd(
        forge.tar_entry("././@LongLink", b"x" * 8_000_000, kind=b"K")
        + forge.tar_entry("x", kind=b"2") + forge.TAR_END), 100),
    "100,000 PAX records": (lambda: forge.zstd(
        forge.pax({f"SCHILY.xattr.user.k{i}": b"x" * 60 for i in range(100_000)})
        + forge.tar_entry("x", b"x") + forge.TAR_END), 100),
    "PAX headers, 1 GiB of one": (lambda: forge.zstd_repeated(forge.pax({"comment": "x"}), GIB // 1024),
                                  100),
    "headers, 1 GiB of one": (lambda: forge.zstd_repeated(forge.tar_header("x"), GIB // 512), 100),
    "a gzip": (lambda: b"\x1f\x8b\x08" + b"\0" * 100_000, 100),
}
for title, (make, unpacked) in LAYERS.items():
    @case(f"layer: {title}")
    def of_layer(box, make=make, unpacked=unpacked):
        package = box.package()
        package.layer = make()
        package.unpacked_size = unpacked
        package.publish()
        return install(box)


def endless(headers, piece):
    def behave(c):
        c.send(headers)
        for _ in range(2000):  # of 256 KiB
            if not c.send(piece * (262_144 // len(piece))):
                return
    return behave


ENDLESS = {
    "a body": endless("HTTP/1.1 200 OK\r\n\r\n", b"x"),
    "a body of lists": endless("HTTP/1.1 200 OK\r\n\r\n{\"x\":[", b"[],"),
    "chunks of a byte": endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "a chunk's extension": endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=", b"x"),
    "trailers": endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n", b"X: y\r\n"),
    "headers": endless("HTTP/1.1 200 OK\r\n", b"X-Padding: x\r\n"),
    "one header": endless("HTTP/1.1 200 OK\r\nX: ", b"x"),
    "a status line": endless("HTTP/1.1 200 ", b"x"),
    "interim answers": endless("", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "challenges": endless("HTTP/1.1 401 No\r\n", b'WWW-Authenticate: Bearer realm="http://127.0.0.1/x"\r\n'),
    "a challenge": endless('HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm="', b"x"),
    "cookies": endless("HTTP/1.1 200 OK\r\n", b"Set-Cookie: a=b\r\n"),
    "an error's body": endless("HTTP/1.1 400 No\r\n\r\n", b"x"),
    "a redirect's body": endless("HTTP/1.1 302 No\r\nLocation: /x\r\n\r\n", b"x"),
}
HEADERS = {
    "a Location of 60 kB": ("302 x", "Location: http://127.0.0.1:1/" + "x" * 60_000),
    "a Location elsewhere of 60 kB": ("302 x", "Location: ftp://" + "x" * 60_000),
    "a Content-Type of 60 kB": ("200 x", "Content-Type: text/" + "x" * 60_000),
    "a Docker-Content-Digest of 60 kB": ("200 x", "Docker-Content-Digest: " + "x" * 60_000),
    "a Content-Encoding of 60 kB": ("200 x", "Content-Encoding: " + "x" * 60_000),
    "a Retry-After of 60 kB": ("503 x", "Retry-After: " + "9" * 60_000),
    "a challenge of 60 kB": ("401 x", 'WWW-Authenticate: Bearer realm="https://' + "x" * 60_000 + '"'),
    "a scheme of 60 kB": ("401 x", "WWW-Authenticate: " + "x" * 60_000),
    "a reason of 60 kB": ("400 " + "x" * 60_000, "X: y"),
}
QUICK = dump({"schema": "kiln.settings/1", "network": {
    "tries": 2, "backoff_ms": 20, "connect_seconds": 2, "stall_seconds": 1, "deadline_seconds": 5}})


def of_answer(box, part, behave):
    box.package().publish()
    box.serve()
    box.server.part = part
    box.server.behave = behave
    package = "sample@7" if part == "/tags/" else "sample@1"
    return box.kiln("install", package, "--device", "cpu", "--registry", box.registry,
                    environment={"KILN_CONFIG": named(box, "config.json", QUICK)})


for part in ("/manifests/1", "/blobs/", "/tags/"):
    for title, behave in ENDLESS.items():
        case(f"endless, {part}: {title}")(functools.partial(of_answer, part=part, behave=behave))
    for title, (status, header) in HEADERS.items():
        def with_header(c, status=status, header=header):
            c.answer(status, header, body=c.body or b"")
        case(f"{part}: {title}")(functools.partial(of_answer, part=part, behave=with_header))


if __name__ == "__main__":
    run_table("bounds", CASES)
