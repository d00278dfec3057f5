# SPDX-License-Identifier: Apache-2.0
"""Forge: archives and OCI documents written byte by byte, so that each byte can be wrong.

Nothing here is shared with the code under test: tar headers, zstd frames and documents are made by
hand. What is published is a variant of the package `sample` that any machine of this architecture
takes.
"""

import hashlib
import json
import pathlib
import platform
import struct

ARCH = platform.machine()
CPU = {"x86_64": "x86-64", "aarch64": "armv8-a"}[ARCH]
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.kiln.variant.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"
BLOCK = 1 << 17  # the most a zstd block holds


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def dump(document):
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def zstd(data, *, window=0x38):
    """A frame of raw blocks; 0x38 is a window of 128 KiB, 8 more doubles it."""
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)] or [b""]
    frame = bytearray(b"\x28\xb5\x2f\xfd\x00" + bytes([window]))
    for number, block in enumerate(blocks):
        last = number == len(blocks) - 1
        frame += struct.pack("<I", len(block) << 3 | last)[:3] + block
    return bytes(frame)


def zstd_zeros(size):
    """A frame that expands to `size` zero bytes: 4 bytes for 128 KiB."""
    frame = bytearray(b"\x28\xb5\x2f\xfd\x00\x38")
    blocks = size // BLOCK
    for number in range(blocks):
        frame += struct.pack("<I", BLOCK << 3 | 1 << 1 | (number == blocks - 1))[:3] + b"\0"
    return bytes(frame)


def zstd_repeated(piece, count):
    """A frame that expands to `piece` `count` times: a block of its bytes, and matches that go on with
    them to the end of each block. One sequence a block, each of its three codes given in RLE mode, so
    that only the codes' extra bits are left to write (RFC 8878, 3.1.1.3.2)."""
    size = len(piece) * count
    offset = len(piece) + 3  # values up to 3 mean a repeated offset
    frame = b"\x28\xb5\x2f\xfd\x00\x38"
    for start in range(0, size, BLOCK):
        literals = b"" if start else piece
        match = min(BLOCK, size - start) - len(literals)
        code, bits, length = 0, 0, 0
        if literals:
            code, bits = {512: (28, 9), 1024: (29, 10)}[len(literals)]
            length = len(literals) - (1 << bits)
        extra, width = 1, offset.bit_length() - 1  # a final 1 marks where the bits end
        extra = extra << width | offset - (1 << width)
        extra = extra << 16 | match - 65539  # code 52: 65539 and 16 bits more
        extra = extra << bits | length
        # Literals as they are, of 12 bits of size; one sequence; RLE for all three codes.
        block = struct.pack("<H", len(literals) << 4 | 1 << 2) + literals
        block += bytes([1, 0b01010100, code, width, 52])
        block += extra.to_bytes((extra.bit_length() + 7) // 8, "little")
        last = start + BLOCK >= size
        frame += struct.pack("<I", len(block) << 3 | 2 << 1 | last)[:3] + block
    return frame


def tar_header(name, size=0, *, kind=b"0", link=b"", mode=b"0000644", size_field=None, magic=None):
    """One ustar header. Names are bytes; `size_field` is written as it is."""
    name = name if isinstance(name, bytes) else name.encode()
    prefix = b""
    if len(name) > 100 and b"/" in name[-101:]:
        cut = len(name) - 101 + name[-101:].index(b"/")
        prefix, name = name[:cut], name[cut + 1 :]
    field = size_field if size_field is not None else b"%011o\0" % size
    header = bytearray(
        name[:100].ljust(100, b"\0") + mode + b"\0" + b"0000000\0" * 2 + field.ljust(12, b"\0")
        + b"00000000000\0" + b" " * 8 + kind + link.ljust(100, b"\0")
        + (magic if magic is not None else b"ustar\x0000") + b"\0" * 64 + b"0000000\0" * 2
        + prefix[:155].ljust(155, b"\0") + b"\0" * 12
    )
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def tar_entry(name, content=b"", **options):
    data = content + b"\0" * (-len(content) % 512)
    return tar_header(name, len(content), **options) + data


def pax(records, kind=b"x"):
    """An extended header: {"path": "x"} for the entry after it, or with kind g for all."""
    text = bytearray()  # which grows in its place: 100,000 records
    for key, value in records.items():
        value = value if isinstance(value, bytes) else value.encode()
        body = b" " + key.encode() + b"=" + value + b"\n"
        length = len(body) + len(str(len(body)))
        length = len(body) + len(str(length))
        text += str(length).encode() + body
    return tar_entry("PaxHeaders/x", bytes(text), kind=kind)


TAR_END = b"\0" * 1024


def tar(files):
    return b"".join(tar_entry(path, data) for path, data in files.items()) + TAR_END


class Package:
    """A package in a folder registry: documents are dictionaries until publish() writes them."""

    def __init__(self, root, name="sample", version=1, files=None, dev=None):
        self.root = pathlib.Path(root)
        self.name = name
        self.version = version
        self.carries = False  # its index has the texts of manifest and config, as publish writes it
        self.files = files or {"LICENSE": b"Apache-2.0\n", "lib/libsample.so": b"no library"}
        self.layer = zstd(tar(self.files))
        self.unpacked_size = sum(len(data) for data in self.files.values())
        self.dev = dev or {}  # the files of its dev layer; none: there is no such layer
        self.host = {"os": "linux", "arch": ARCH, "cpu": CPU, "glibc": "2.17"}
        self.config = {
            "schemaVersion": 1, "name": name, "version": version, "variant": "cpu-base",
            "min_loader": "0.1.0", "abi": 1, "host": self.host, "needs": [],
            "files": [{"path": path, "digest": digest_of(data), "size": len(data)}
                      for path, data in sorted(self.files.items())],
            "entry": {"library": "lib/libsample.so", "symbol": "kiln_package_v1"},
            "build_id": "sample-build",
        }
        if self.dev:
            self.config["dev_files"] = [{"path": path, "digest": digest_of(data), "size": len(data)}
                                        for path, data in sorted(self.dev.items())]
        self.annotations = {
            "dev.kiln.abi": "1", "dev.kiln.min-loader": "0.1.0", "dev.kiln.host.arch": ARCH,
            "dev.kiln.host.cpu": CPU, "dev.kiln.host.glibc": "2.17", "dev.kiln.tested": "untested",
            "dev.kiln.variant": "cpu-base",
        }

    def put(self, data):
        path = self.root / self.name / "blobs/sha256" / hashlib.sha256(data).hexdigest()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return digest_of(data)

    def descriptor(self, data, media_type):
        return {"mediaType": media_type, "digest": self.put(data), "size": len(data)}

    def manifest(self):
        config = self.config if isinstance(self.config, bytes) else dump(self.config)
        layer = self.descriptor(self.layer, LAYER_TYPE)
        layer["annotations"] = {"dev.kiln.unpacked-size": str(self.unpacked_size),
                                "org.opencontainers.image.title": "sample.tar.zst"}
        layers = [layer]
        if self.dev:
            dev = self.descriptor(zstd(tar(self.dev)), LAYER_TYPE)
            dev["annotations"] = {"dev.kiln.layer": "dev", "org.opencontainers.image.title": "dev-sample.tar.zst",
                                  "dev.kiln.unpacked-size": str(sum(len(data) for data in self.dev.values()))}
            layers.append(dev)
        return {"schemaVersion": 2, "mediaType": MANIFEST_TYPE,
                "artifactType": "application/vnd.kiln.variant.v1",
                "config": self.descriptor(config, CONFIG_TYPE), "layers": layers}

    def variant(self, manifest):
        """The index's entry for a manifest, given as bytes."""
        carried = {"dev.kiln.manifest": manifest.decode(),
                   "dev.kiln.config": dump(self.config).decode()} if self.carries else {}
        return self.descriptor(manifest, MANIFEST_TYPE) | {
            "platform": {"os": "linux", "architecture": "amd64" if ARCH == "x86_64" else "arm64"},
            "annotations": self.annotations | carried}

    def index(self, variants):
        return {"schemaVersion": 2, "mediaType": INDEX_TYPE,
                "artifactType": "application/vnd.kiln.kernel.v1",
                "annotations": {"dev.kiln.kernel": self.name, "dev.kiln.abi": "1",
                                "dev.kiln.min-loader": "0.1.0",
                                "org.opencontainers.image.version": str(self.version)},
                "manifests": variants}

    def publish(self, change_manifest=None, change_index=None):
        """`change_…` takes a document and returns it, or bytes to be written in its place."""
        manifest = self.manifest()
        manifest = change_manifest(manifest) if change_manifest else manifest
        manifest = manifest if isinstance(manifest, bytes) else dump(manifest)
        index = self.index([self.variant(manifest)])
        index = change_index(index) if change_index else index
        index = index if isinstance(index, bytes) else dump(index)
        entry = self.descriptor(index, INDEX_TYPE)
        entry["annotations"] = {"org.opencontainers.image.ref.name": str(self.version)}
        layout = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]}
        (self.root / self.name / "index.json").write_bytes(dump(layout))
        (self.root / self.name / "oci-layout").write_bytes(b'{"imageLayoutVersion":"1.0.0"}')
        return self
