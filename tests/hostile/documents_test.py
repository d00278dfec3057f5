#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile JSON and OCI documents, byte by byte, against the real command."""

import base64
import copy
import functools

from sandbox import INTEGRITY, NO_VARIANT, OK, UPGRADE, run_table  # first: it says where forge is
import forge
from forge import dump

# What is wrong with JSON wherever it stands: of good bytes, bad ones, and a word of the refusal.
BYTES = {
    "more than 4 MiB": (lambda good: good[:-1] + b" " * (4 << 20) + b"}", "4194304"),
    "a million levels": (lambda good: b"[" * 1_000_000, "deeper than 32"),
    "a million levels inside": (lambda good: b'{"x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b","
                                + good[1:], "deeper than 32"),
    "a key twice": (lambda good: b'{"schemaVersion":1,' + good[1:], "twice"),
    "a key twice, escaped": (lambda good: b'{"schema\\u0056ersion":1,' + good[1:], "twice"),
    "trailing bytes": (lambda good: good + b"x", "not JSON"),
    "a second document": (lambda good: good + good, "not JSON"),
    "a NUL and more": (lambda good: good + b"\0" + good, "NUL"),
    "a byte order mark": (lambda good: b"\xef\xbb\xbf" + good, "byte order mark"),
    "a comment": (lambda good: good + b"// x", "not JSON"),
    "not UTF-8": (lambda good: b'{"x":"\xff\xfe",' + good[1:], "not JSON"),
    "half a surrogate": (lambda good: b'{"x":"\\ud800",' + good[1:], "not JSON"),
    "a huge number": (lambda good: b'{"x":1e999,' + good[1:], "not JSON"),
    "cut": (lambda good: good[:-1], "not JSON"),
    "no bytes": (lambda good: b"", "not JSON"),
    "a captive portal": (lambda good: b"<html>\x1b[2JLog in</html>", "not JSON"),
    "a list": (lambda good: b"[" + good + b"]", "expected an object"),
    "null": (lambda good: b"null", "expected an object"),
}

NUMBERS = {"below zero": b"-1", "a fraction": b"3.9", "an exponent": b"1e3", "2^64":
           b"18446744073709551616", "text": b'"1"', "true": b"true", "null": b"null", "list": b"[]"}

DIGESTS = {
    "upper case": lambda digest: digest.upper().replace("SHA256", "sha256"),
    "another algorithm": lambda digest: "sha512:" + "0" * 128,
    "md5": lambda digest: "md5:" + "0" * 32,
    "a path": lambda digest: "sha256:../../../../etc/passwd",
    "a path of 64": lambda digest: "sha256:" + "../" * 21 + "x",
    "no algorithm": lambda digest: digest.removeprefix("sha256:"),
    "short": lambda digest: digest[:-1],
    "long": lambda digest: digest + "0",
    "a NUL": lambda digest: digest[:-1] + "\0",
    "empty": lambda digest: "",
}

CASES = []


def row(name, code, word, **changes):
    """What is changed: `manifest`, `index` and `config` take a document and return another, or bytes;
    `package` changes the package, `stored` the bytes of one of its blobs."""
    CASES.append((name, functools.partial(check, code, word, changes)))


def check(code, word, changes, box):
    package = box.package()
    if "package" in changes:
        changes["package"](package)
    if "config" in changes:
        package.config = changes["config"](package.config)
    package.publish(changes.get("manifest"), changes.get("index"))
    if "stored" in changes:
        place, spoil = changes["stored"]
        data = {"manifest": lambda: dump(package.manifest()), "layer": lambda: package.layer,
                "config": lambda: dump(package.config)}[place]()
        package.put(data)
        digest = forge.digest_of(data).removeprefix("sha256:")
        (box.root / "sample/blobs/sha256" / digest).write_bytes(spoil(data))
    box.serve()
    box.expect(code, word)
    box.check_cache()


def put(value, *path):
    """Puts a value in a document's place; a function makes it of the one that is there."""
    def change(document):
        document = copy.deepcopy(document)
        at = document
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value(at[path[-1]]) if callable(value) else value
        return document
    return change


def note(key, value):
    return put(value, "manifests", 0, "annotations", "dev.kiln." + key)


def spelled(value, key):
    """Puts bytes in the place of the first number of this name, which no JSON writer would write."""
    def change(document):
        text = dump(document)
        at = text.index(key) + len(key)
        end = min(i for i in (text.find(b",", at), text.find(b"}", at)) if i > 0)
        return text[:at] + value + text[end:]
    return change


def copies(count):
    def change(variants):
        return [variants[0] | {"annotations": variants[0]["annotations"]
                               | {"dev.kiln.variant": f"cpu-{i}"}} for i in range(count)]
    return put(change, "manifests")


for document in ("index", "manifest", "config"):
    for name, (spoil, word) in BYTES.items():
        row(f"{document}: {name}", INTEGRITY, word,
            **{document: lambda good, spoil=spoil: spoil(dump(good))})

for name, bad in NUMBERS.items():
    row(f"index size {name}", INTEGRITY, "", index=spelled(bad, b'"size":'))
    row(f"manifest size {name}", INTEGRITY, "", manifest=spelled(bad, b'"size":'))
    row(f"config size {name}", INTEGRITY, "", config=spelled(bad, b'"size":'))
    row(f"config version {name}", INTEGRITY, "", config=spelled(bad, b'"version":'))
    row(f"index schema {name}", INTEGRITY, "", index=spelled(bad, b'"schemaVersion":'))

for key in ("manifests", "annotations", "mediaType", "artifactType"):
    for bad in (None, 1, "x", [1], {"x": 1}, True):
        row(f"index {key} = {bad!r}", INTEGRITY, "", index=put(bad, key))
for key in ("config", "layers"):
    for bad in (None, 1, "x", [], [1], {}):
        row(f"manifest {key} = {bad!r}", INTEGRITY, "", manifest=put(bad, key))
for key in ("name", "version", "variant", "host", "needs", "files", "entry", "build_id"):
    for bad in (None, -1, "", [{}], {"x": 1}):
        row(f"config {key} = {bad!r}", INTEGRITY, "", config=put(bad, key))

for name, spoil in DIGESTS.items():
    row(f"digest {name} in the index", INTEGRITY, "", index=put(spoil, "manifests", 0, "digest"))
    row(f"digest {name} of the config", INTEGRITY, "", manifest=put(spoil, "config", "digest"))
    row(f"digest {name} of the layer", INTEGRITY, "", manifest=put(spoil, "layers", 0, "digest"))
    row(f"digest {name} of a file", INTEGRITY, "", config=put(spoil, "files", 0, "digest"))

for step in (-1, 1, 1 << 40):
    def more(size, step=step):
        return size + step

    def unpacked(package, step=step):
        package.unpacked_size += step

    row(f"manifest {step:+} bytes", INTEGRITY, "", index=put(more, "manifests", 0, "size"))
    row(f"config {step:+} bytes", INTEGRITY, "", manifest=put(more, "config", "size"))
    if step < 2:  # room for a layer of a terabyte is a question for the disk
        row(f"layer {step:+} bytes", INTEGRITY, "", manifest=put(more, "layers", 0, "size"))
        row(f"unpacked {step:+} bytes", INTEGRITY, "", package=unpacked)

for place in ("manifest", "config", "layer"):
    for name, spoil in {"other": lambda data: bytes([data[0] ^ 1]) + data[1:],
                        "no": lambda data: b"", "more": lambda data: data + b"x",
                        "fewer": lambda data: data[:-1]}.items():
        row(f"{name} bytes of the {place}", INTEGRITY, "", stored=(place, spoil))

row("an index in a variant's place", INTEGRITY, "",
    index=put(forge.INDEX_TYPE, "manifests", 0, "mediaType"))
row("another media type", INTEGRITY, "", index=put("text/html", "manifests", 0, "mediaType"))
row("no variants", NO_VARIANT, "sample@1", index=put([], "manifests"))
row("a variant twice", INTEGRITY, "", index=put(lambda variants: variants * 2, "manifests"))
row("100,000 variants", INTEGRITY, "4194304", index=copies(100_000))
row("a name that is a path", INTEGRITY, "", index=note("variant", "../../x"))
row("a name with an escape", INTEGRITY, "", index=note("variant", "\x1b[2J"))
row("an unknown CPU", INTEGRITY, "", index=note("host.cpu", "x86-64-v99"))
row("an unknown glibc", INTEGRITY, "", index=note("host.glibc", "two"))
row("another glibc than the config", INTEGRITY, "", index=note("host.glibc", "2.18"))
row("an ABI that is no number", INTEGRITY, "", index=note("abi", "one"))
row("a variant for a newer loader", NO_VARIANT, "", index=note("min-loader", "99.0.0"))
row("an index for a newer loader", UPGRADE, "99.0.0",
    index=put("99.0.0", "annotations", "dev.kiln.min-loader"))
row("another package's index", INTEGRITY, "", index=put("other", "annotations", "dev.kiln.kernel"))
row("another version's index", INTEGRITY, "",
    index=put("2", "annotations", "org.opencontainers.image.version"))
row("two layers", INTEGRITY, "", manifest=put(lambda layers: layers * 2, "layers"))
row("another package's config", INTEGRITY, "", config=put("other", "name"))
for path in ("../escaped", "/tmp/kiln-escaped", "a/../../b", "lib//x", "./x", "", "a\\b",
             "x" * 256, "a/" * 600 + "x", "lib", "\x1b[2J", "LICENSE/x", "tab\t"):
    row(f"a config that lists {path[:20]!r}", INTEGRITY, "",
        config=put(lambda files, path=path: files + [
            {"path": path, "digest": forge.digest_of(b""), "size": 0}], "files"))
row("a terabyte listed", INTEGRITY, "",
    config=put(lambda files: [dict(each, size=1 << 63) for each in files], "files"))
row("a library that is not listed", INTEGRITY, "", config=put("../../../lib/x.so", "entry", "library"))
row("a symbol that is none", INTEGRITY, "", config=put("f;g", "entry", "symbol"))
row("a needed library with a path", INTEGRITY, "", config=put(["/tmp/evil.so"], "needs"))

def carrying(**changes):
    """An index that carries the variant's documents, one of them changed."""
    def change(package):
        package.carries = True
    return {"package": change, "index": put(lambda notes: notes | {
        f"dev.kiln.{key}": spoil(notes[f"dev.kiln.{key}"]) for key, spoil in changes.items()},
        "manifests", 0, "annotations")}


row("it carries manifest and config", OK, "loads", **carrying())
for key in ("manifest", "config"):
    for name, spoil in {"another text": lambda text: text.replace(":", ": ", 1),
                        "one byte more": lambda text: text + " ", "a part": lambda text: text[:-1],
                        "no JSON": lambda text: "x", "100 kB": lambda text: "x" * 100_000,
                        "a number": lambda text: 1, "an object": lambda text: {}}.items():
        row(f"it carries as {key} {name}", INTEGRITY, key, **carrying(**{key: spoil}))
    row(f"it carries no {key}", OK, "loads", **carrying(**{key: lambda text: ""}))

row("as it is", OK, "loads")
row("unknown members", OK, "loads", index=lambda index: index | {"x": [1, {"y": None}]},
    manifest=lambda manifest: manifest | {"subject": {"x": 1}},
    config=lambda config: config | {"future": 1})
row("urls of elsewhere, which nobody asks", OK, "loads", index=put(
    lambda variant: variant | {"urls": ["http://192.0.2.1/x"]}, "manifests", 0))
row("data of another text, which nobody reads", OK, "loads", index=put(
    lambda variant: variant | {"data": base64.b64encode(b"{}").decode()}, "manifests", 0))

if __name__ == "__main__":
    run_table("documents", CASES)
