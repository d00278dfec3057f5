# SPDX-License-Identifier: Apache-2.0
"""A registry with one version, keys, and what a test asks of them; used by the tests of this folder."""

import base64
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "publish"))

OK, USAGE, NOT_FOUND, INTEGRITY, TRUST, OFFLINE, CONFLICT = 0, 2, 4, 6, 7, 10, 16
NAME = "tiny-op"
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
SIGNATURE = "https://sigstore.dev/cosign/sign/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
SBOM = "https://spdx.dev/Document"
TESTS = "urn:kiln:tests:v1"
PROGRAMS = [os.path.abspath(word) for word in sys.argv[1:4]]


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def encoding(payload_type, payload):
    """DSSE's pre-authentication encoding."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def is_signed(envelope, public):
    """Whether a key in PEM signed an envelope, by the book."""
    key = serialization.load_pem_public_key(public)
    signed = encoding(envelope["payloadType"], base64.b64decode(envelope["payload"]))
    for signature in envelope["signatures"]:
        try:
            raw = base64.b64decode(signature["sig"])
            if isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(raw, signed, ec.ECDSA(hashes.SHA256()))
            else:
                key.verify(raw, signed)
            return True
        except InvalidSignature:
            continue
    return False


class AttestTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        network = {"tries": 3, "backoff_ms": 10, "connect_seconds": 2, "stall_seconds": 2, "deadline_seconds": 10}
        (self.work / ".config/kiln").mkdir(parents=True)
        (self.work / ".config/kiln/config.json").write_text(
            json.dumps({"schema": "kiln.settings/1", "network": network}))
        self.environment = {"HOME": str(self.work), "PATH": "/usr/bin:/bin", "KILN_CACHE": str(self.work / "cache"),
                            "KILN_UNSIGNED": "/,http://127.0.0.1", "SOURCE_DATE_EPOCH": "1800000000"}
        subprocess.run([PROGRAMS[2], self.work / "built"], check=True)
        self.registry = self.work / "registry"
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/one")
        self.public = {name: self.make_key(name) for name in ("release", "other")}

    def kiln(self, *words, code=OK, says=(), **environment):
        program = PROGRAMS[0] if words[0] == "registry" else PROGRAMS[1]
        words = words[1:] if words[0] == "registry" else words
        done = subprocess.run([program, *map(str, words), "--json"], capture_output=True, text=True, timeout=60,
                              env=self.environment | environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        for word in [says] if isinstance(says, str) else says:
            self.assertIn(word, done.stderr + done.stdout)
        return json.loads(done.stdout) if code == OK else None

    def private_key(self, name):
        return self.work / "keys" / name

    def public_key(self, name):
        return self.work / "keys" / f"{name}.pub"

    def make_key(self, name, kind="ecdsa"):
        (self.work / "keys").mkdir(exist_ok=True)
        self.kiln("registry", "key", self.private_key(name), "--type", kind)
        return self.public_key(name).read_bytes()

    def fingerprint(self, name):
        key = serialization.load_pem_public_key(self.public[name])
        return hashlib.sha256(key.public_bytes(serialization.Encoding.DER,
                                               serialization.PublicFormat.SubjectPublicKeyInfo)).hexdigest()

    def attest(self, *words, key="release", **how):
        return self.kiln("registry", "attest", f"{NAME}@1", "--registry", self.registry, "--key",
                         self.private_key(key), *words, **how)

    def record(self, name="record.json", hardware="EPYC", failed=0, libraries=None):
        """A test record of the CPU variant's library."""
        path = self.work / name
        results = [{"variant": "cpu-x86-64-v3", "library": library, "cases": 12, "failed": failed}
                   for library in libraries or [self.library()]]
        path.write_text(json.dumps({"schema": "kiln.record/1", "hardware": hardware, "date": "2026-11-24",
                                    "results": results}))
        return path

    def library(self):
        config = json.loads((self.work / "built/one/cpu-x86-64-v3/config.json").read_text())
        return next(file["digest"] for file in config["files"] if file["path"] == config["entry"]["library"])

    def index(self):
        [version] = self.kiln("registry", "list", "--registry", self.registry)["versions"]
        return version["index"]["digest"]

    def blob(self, digest, registry=None):
        data = ((registry or self.registry) / NAME / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()
        self.assertEqual(digest_of(data), digest)
        return data

    def tags(self, registry=None):
        listed = json.loads(((registry or self.registry) / NAME / "index.json").read_text())["manifests"]
        return {each["annotations"]["org.opencontainers.image.ref.name"]: each["digest"] for each in listed
                if "annotations" in each}

    def list_tag(self):
        return self.index().replace(":", "-")

    def bundles(self, registry=None):
        """(manifest, bundle) of all that hangs on the index in a folder."""
        listed = json.loads(self.blob(self.tags(registry)[self.list_tag()], registry))
        self.assertEqual(listed["mediaType"], INDEX)
        found = []
        for entry in listed["manifests"]:
            manifest = json.loads(self.blob(entry["digest"], registry))
            [layer] = manifest["layers"]
            found.append((manifest, json.loads(self.blob(layer["digest"], registry))))
        return found

    def statements(self):
        """The statements by predicate type, of those that the key `release` signed."""
        return {statement["predicateType"]: statement for statement in
                (json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"])) for _, bundle in self.bundles())}

    def hang(self, bundle, subject=None, media_type=BUNDLE, artifact_type=BUNDLE):
        """Puts any bytes beside what hangs on the index, as somebody with write access could."""
        layout = self.registry / NAME
        blobs = layout / "blobs/sha256"

        def put(data, kind):
            path = blobs / digest_of(data).removeprefix("sha256:")
            if not path.exists():
                path.write_bytes(data)
            return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}

        index = self.index()
        subject = subject or {"mediaType": INDEX, "digest": index, "size": len(self.blob(index))}
        manifest = put(json.dumps({
            "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": BUNDLE,
            "config": put(b"{}", "application/vnd.oci.empty.v1+json"), "layers": [put(bundle, media_type)],
            "subject": subject}).encode(), MANIFEST)
        self.relist(lambda listed: [*listed, manifest | {"artifactType": artifact_type}])

    def relist(self, change):
        """Writes another list of what hangs on the index."""
        layout = self.registry / NAME
        before = self.tags().get(self.list_tag())
        listed = json.loads(self.blob(before))["manifests"] if before else []
        data = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": change(listed)}).encode()
        (layout / "blobs/sha256" / digest_of(data).removeprefix("sha256:")).write_bytes(data)
        document = json.loads((layout / "index.json").read_text())
        name = {"org.opencontainers.image.ref.name": self.list_tag()}
        document["manifests"] = [each for each in document["manifests"] if each.get("annotations") != name]
        document["manifests"].append({"mediaType": INDEX, "digest": digest_of(data), "size": len(data),
                                      "annotations": name})
        (layout / "index.json").write_text(json.dumps(document))

    def require(self, *words, registry=None, key="release", **how):
        keys = [word for name in key.split(",") for word in ("--key", self.public_key(name))]
        return self.kiln("trust", "require", registry or self.registry, *keys, *words, **how)

    def forget(self, *names):
        for name in names or ("cache", ".config/kiln/verified"):
            path = self.work / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def install(self, registry=None, *words, **how):
        return self.kiln("install", f"{NAME}@1", "--registry", registry or self.registry, "--device", "cpu", *words,
                         **how)


def main():
    sys.exit(0 if unittest.main(argv=[sys.argv[0], *sys.argv[4:]], exit=False).result.wasSuccessful() else 1)
