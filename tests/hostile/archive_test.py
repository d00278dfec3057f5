#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile layers, byte by byte, against the real command."""

import functools
import gzip
import lzma
import os

from sandbox import INTEGRITY, LIBRARY, OK, require, run_table  # first: it says where forge is
from forge import TAR_END, pax, tar_entry, tar_header, zstd, zstd_repeated, zstd_zeros

LICENSE = tar_entry("LICENSE", b"Apache-2.0\n")
SAMPLE = tar_entry("lib/libsample.so", LIBRARY)
GOOD = LICENSE + SAMPLE
UNLISTED = "which its config does not list"


def instead_of_license(*arguments, **options):
    return tar_header(*arguments, **options) + SAMPLE + TAR_END


ENTRIES = {
    "parent folder": (tar_entry("../escaped", b"x"), UNLISTED),
    "absolute": (tar_entry("/tmp/kiln-escaped", b"x"), UNLISTED),
    "parent folder inside": (tar_entry("lib/../../escaped", b"x"), UNLISTED),
    "backslashes": (tar_entry("..\\escaped", b"x"), UNLISTED),
    "drive": (tar_entry("C:\\x", b"x"), UNLISTED),
    "control bytes": (tar_entry(b"\x1b]0;owned\x07\r\n", b"x"), UNLISTED),
    "not UTF-8": (tar_entry(b"\xff\xfe\x80", b"x"), UNLISTED),
    "empty name": (tar_entry("", b"x"), ""),
    "dot": (tar_entry("./LICENSE", b"Apache-2.0\n"), UNLISTED),
    "trailing slash": (tar_entry("LICENSE/", b"Apache-2.0\n"), ""),
    "300 bytes of name": (pax({"path": "n" * 300}) + tar_entry("x", b"x"), UNLISTED),
    "5000 bytes of name": (pax({"path": "n/" * 2500}) + tar_entry("x", b"x"), UNLISTED),
    "NUL in a name": (pax({"path": b"LICENSE\0x"}) + tar_entry("x", b"x"), ""),
    "twice": (LICENSE, "twice"),
    "a file as a folder": (tar_entry("LICENSE/x", b"x"), UNLISTED),
    "a folder as a file": (tar_header("LICENSE", kind=b"5"), ""),
    "case twin": (tar_entry("license", b"Apache-2.0\n"), UNLISTED),
    "Unicode twin": (tar_entry("LI\u0421ENSE", b"Apache-2.0\n"), UNLISTED),
    "extra file": (tar_entry("lib/other.so", LIBRARY), UNLISTED),
    "extra folder": (tar_header("lib", kind=b"5"), UNLISTED),
    "extra link": (tar_header("link", kind=b"2", link=b"/etc/passwd"), UNLISTED),
    "extra hard link": (tar_header("link", kind=b"1", link=b"LICENSE"), UNLISTED),
    "extra fifo": (tar_header("fifo", kind=b"6"), UNLISTED),
    "PAX name": (pax({"path": "../escaped"}) + tar_entry("x", b"x"), UNLISTED),
    "PAX name for all": (pax({"path": "../escaped"}, kind=b"g") + tar_entry("x", b"x"), ""),
    "GNU long name": (tar_entry("././@LongLink", b"../" * 60 + b"x\0", kind=b"L")
                      + tar_entry("x", b"x"), UNLISTED),
    "multi-volume": (tar_header("LICENSE", kind=b"M"), ""),
}

INSTEAD = {
    "link": (instead_of_license("LICENSE", kind=b"2", link=b"/etc/passwd"), "not a regular file"),
    "link out": (instead_of_license("LICENSE", kind=b"2", link=b"../../.."), "not a regular file"),
    "hard link": (instead_of_license("LICENSE", kind=b"1", link=b"/etc/passwd"), "hard link"),
    "hard link inside": (SAMPLE + tar_header("LICENSE", kind=b"1", link=b"lib/libsample.so")
                         + TAR_END, "hard link"),
    "character device": (instead_of_license("LICENSE", kind=b"3"), "not a regular file"),
    "block device": (instead_of_license("LICENSE", kind=b"4"), "not a regular file"),
    "fifo": (instead_of_license("LICENSE", kind=b"6"), "not a regular file"),
    "link, then a file through it": (tar_header("lib", kind=b"2", link=b"/tmp") + GOOD + TAR_END,
                                     UNLISTED),
    "sparse, GNU": (instead_of_license("LICENSE", kind=b"S"), ""),
    "sparse, PAX": (pax({"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                         "GNU.sparse.name": "LICENSE", "GNU.sparse.realsize": "11"})
                    + tar_entry("x", b"1\n5\n6\n".ljust(512, b"\0") + b"e-2.0\n")
                    + SAMPLE + TAR_END, ""),
    "sparse, PAX, of terabytes": (pax({"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
                                       "GNU.sparse.name": "LICENSE",
                                       "GNU.sparse.realsize": "99999999999999"})
                                  + tar_entry("x", b"1\n99999999999988\n11\n".ljust(512, b"\0")
                                              + b"Apache-2.0\n") + SAMPLE + TAR_END, ""),
    "PAX size": (pax({"size": "9223372036854775807"}) + GOOD + TAR_END, ""),
    "PAX size below zero": (pax({"size": "-1"}) + GOOD + TAR_END, ""),
    "size below zero": (instead_of_license("LICENSE", size_field=b"\xff" * 12), ""),
    "huge size": (instead_of_license("LICENSE", size_field=b"\x80" + b"\0" * 3 + b"\x7f" * 8), ""),
    "size that is no number": (instead_of_license("LICENSE", size_field=b"zzzzzzzzzzz\0"), ""),
    "one byte less": (tar_entry("LICENSE", b"Apache-2.0") + SAMPLE + TAR_END, "has 10 bytes"),
    "one byte more": (tar_entry("LICENSE", b"Apache-2.0\n\n") + SAMPLE + TAR_END, "has 12 bytes"),
    "other bytes": (tar_entry("LICENSE", b"Apache-2.1\n") + SAMPLE + TAR_END, "LICENSE"),
    "a file missing": (LICENSE + TAR_END, "'lib/libsample.so' is missing"),
    "nothing in it": (TAR_END, "is missing"),
    "cut in a file": (GOOD[:-700], ""),
    "cut in a header": (LICENSE + SAMPLE[:300], ""),
    "wrong checksum": (LICENSE[:10] + b"x" + LICENSE[11:] + SAMPLE + TAR_END, ""),
    "a second archive": (GOOD + TAR_END + tar_entry("../escaped", b"x") + TAR_END,
                         "goes on after"),
    "bytes after the end": (GOOD + TAR_END + b"#!/bin/sh\n", "goes on after"),
    "20,000 names": (b"".join(tar_header(f"e/{i}") for i in range(20_000)) + TAR_END, UNLISTED),
    "1,000 extended headers": (pax({"comment": "x"}) * 1_000 + GOOD + TAR_END, ""),
    "an archive of another kind": (b"070701" + b"0" * 104 + b"x\0" * 600, ""),
    "text": (b"<html>Log in</html>" * 100, ""),
}

FRAME = zstd(GOOD + TAR_END)
COMPRESSED = {
    "no bytes": (b"", ""),
    "one byte": (b"\x28", ""),
    "no compression": (GOOD + TAR_END, "compression filters"),
    "gzip": (gzip.compress(GOOD + TAR_END), ""),
    "xz": (lzma.compress(GOOD + TAR_END), ""),
    "lrzip": (b"LRZI\0\6" + b"\0" * 600, ""),
    "zstd in zstd": (zstd(FRAME), "2 compression filters"),
    "zstd in zstd in zstd": (zstd(zstd(FRAME)), "3 compression filters"),
    "cut": (FRAME[:-1], ""),
    "cut in half": (FRAME[: len(FRAME) // 2], ""),
    "without its magic": (b"\0\0\0\0" + FRAME[4:], ""),
    "wrong block": (FRAME[:6] + b"\7" + FRAME[7:], ""),
    "trailing bytes": (FRAME + b"trailing garbage", ""),
    "a second frame with an archive": (FRAME + zstd(tar_entry("../x", b"x") + TAR_END),
                                       "goes on after"),
    "3 GiB of zeros in 98 kB": (zstd_zeros(3 << 30), ""),
    "3 GiB of zeros at the end": (zstd(GOOD + TAR_END) + zstd_zeros(3 << 30), "decompresses to more"),
    "3 GiB of zeros as a listed file": (zstd(tar_header("LICENSE", 3 << 30)) + zstd_zeros(3 << 30), ""),
    "a million entries in 57 kB": (zstd_repeated(tar_header("e"), 1 << 20), UNLISTED),
    "a million listed entries": (zstd_repeated(tar_header("LICENSE"), 1 << 20), "has 0 bytes"),
    "a million folders": (zstd_repeated(tar_header("lib/", kind=b"5"), 1 << 20), UNLISTED),
    "a million global headers": (zstd_repeated(pax({"comment": "x"}, kind=b"g"), 1 << 20), ""),
    "a window of 2 GiB": (zstd(GOOD + TAR_END, window=0xA8), ""),
    "a window of 3.75 TiB": (zstd(GOOD + TAR_END, window=0xFF), ""),
    "a dictionary that nobody has": (FRAME[:4] + b"\x01\x38\x07" + FRAME[6:], ""),
}

HARMLESS = {
    "as it is": zstd(GOOD + TAR_END),
    "two frames, one archive": zstd(LICENSE) + zstd(SAMPLE + TAR_END),
    "set-user-id and all rights": zstd(
        tar_entry("LICENSE", b"Apache-2.0\n", mode=b"0007777") + SAMPLE + TAR_END),
    "extended attributes": zstd(pax({"SCHILY.xattr.user.x": "y", "uid": "0"}) + GOOD + TAR_END),
    "a volume label": zstd(tar_header("label", kind=b"V") + GOOD + TAR_END),
    "padded with zeros": zstd(GOOD + TAR_END + b"\0" * 9216),
}


def refuse(layer, word, box):
    package = box.package()
    package.layer = layer
    package.publish()
    box.serve()
    box.expect(INTEGRITY, word)
    box.check_cache()
    package.layer = zstd(GOOD + TAR_END)  # nothing of the bad one stays in the good one's way
    package.publish()
    require(box.load().code == OK, "the good layer is not taken afterwards")


def take(layer, box):
    package = box.package()
    package.layer = layer
    package.publish()
    box.serve()
    box.expect(OK, "loads")
    box.check_cache()
    [library] = box.cache.rglob("libsample.so")
    for path in library.parent.parent.rglob("*"):
        if path.is_file():
            require(path.stat().st_mode & 0o7777 == 0o444, f"mode of {path}")
            require(os.listxattr(path) == [], f"attributes of {path}")


# An entry where the reader has seen everything it wants, and one where it has seen nothing.
TABLES = [
    {name: (zstd(GOOD + entry + TAR_END), word) for name, (entry, word) in ENTRIES.items()},
    {name + ", first": (zstd(entry + GOOD + TAR_END), "") for name, (entry, _) in ENTRIES.items()
     if name not in ("twice", "PAX name for all")},
    {name: (zstd(archive), word) for name, (archive, word) in INSTEAD.items()},
    COMPRESSED,
]

if __name__ == "__main__":
    run_table("archive", [
        (name, functools.partial(refuse, layer, word))
        for table in TABLES for name, (layer, word) in table.items()
    ] + [(name, functools.partial(take, layer)) for name, layer in HARMLESS.items()])
