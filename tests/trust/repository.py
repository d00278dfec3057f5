# SPDX-License-Identifier: Apache-2.0
"""A TUF repository on 127.0.0.1 that signs whatever a test wants, true or not.

Metadata is plain dictionaries, so that a test can write what a correct library refuses to write.
`files` maps a path below the server to its bytes, to a status, or to a function that answers.
`requests` holds the paths that were asked for, as they stood in the request.
"""

import copy
import hashlib
import http.server
import json
import threading
import urllib.parse

from securesystemslib.formats import encode_canonical
from securesystemslib.signer import CryptoSigner

FAR = "2099-01-01T00:00:00Z"
PAST = "2001-01-01T00:00:00Z"
TOP = ("root", "timestamp", "snapshot", "targets")


def key_entry(signer):
    return signer.public_key.to_dict()


def envelope(signed, signers):
    """`signed` under a signature of each of `signers`, as the bytes of a metadata file."""
    canonical = encode_canonical(signed).encode()
    signatures = [{"keyid": signer.public_key.keyid, "sig": signer.sign(canonical).signature}
                  for signer in signers]
    return json.dumps({"signatures": signatures, "signed": signed}).encode()


def metadata(kind, **fields):
    return {"_type": kind, "spec_version": "1.0.31", "version": 1, "expires": FAR, **fields}


def description(data):
    return {"length": len(data), "hashes": {"sha256": hashlib.sha256(data).hexdigest()}}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):  # noqa: N802
        repository = self.server.repository
        path = self.path.lstrip("/")
        repository.requests.append(path)
        answer = repository.files.get(path, 404)
        if callable(answer):
            answer(self)
        elif isinstance(answer, int):
            self.send_error(answer)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.write(answer)

    def write(self, data):
        """False once the client has gone: it may leave in the middle of a body."""
        try:
            self.wfile.write(data)
        except OSError:
            return False
        return True

    def log_message(self, *_):
        pass


def endless(handler):
    handler.send_response(200)
    handler.end_headers()
    sent = 0
    while handler.write(b" " * 65536) and sent < 1 << 28:
        sent += 65536
    handler.server.repository.sent = sent


class Repository:
    def __init__(self, consistent=True):
        self.files, self.requests, self.sent = {}, [], 0
        self.signers = {role: [CryptoSigner.generate_ed25519()] for role in TOP}
        self.signed = {
            "root": metadata("root", consistent_snapshot=consistent, keys={}, roles={}),
            "timestamp": metadata("timestamp", meta={}),
            "snapshot": metadata("snapshot", meta={}),
            "targets": metadata("targets", targets={}),
        }
        self.thresholds = dict.fromkeys(TOP, 1)
        self.delegated = []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.repository = self
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.appoint()
        self.write("root")
        self.publish()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def name(self, role, version=None):
        """The path at which a client asks for `role`."""
        version = version or self.signed[role]["version"]
        versioned = role == "root" or (role != "timestamp"
                                       and self.signed["root"]["consistent_snapshot"])
        quoted = urllib.parse.quote(role, "")
        return f"metadata/{version}.{quoted}.json" if versioned else f"metadata/{quoted}.json"

    def bytes(self, role):
        return self.files[self.name(role)]

    def write(self, role, signers=None):
        """Signs `role` as it stands; returns and serves its bytes."""
        data = envelope(self.signed[role], self.signers[role] if signers is None else signers)
        self.files[self.name(role)] = data
        return data

    def appoint(self):
        """Lets the root name the keys and thresholds of the top-level roles."""
        root = self.signed["root"]
        root["keys"] = {signer.public_key.keyid: key_entry(signer)
                        for role in TOP for signer in self.signers[role]}
        root["roles"] = {
            role: {"keyids": list(dict.fromkeys(s.public_key.keyid for s in self.signers[role])),
                   "threshold": self.thresholds[role]} for role in TOP}

    def rotate(self, *roles, also_sign=()):
        """The next root, with new keys for `roles`, signed by the old root keys and the new."""
        before = list(self.signers["root"])
        for role in roles:
            self.signers[role] = [CryptoSigner.generate_ed25519() for _ in self.signers[role]]
        self.signed["root"]["version"] += 1
        self.appoint()
        signers = {s.public_key.keyid: s for s in [*before, *self.signers["root"], *also_sign]}
        return self.write("root", list(signers.values()))

    def describe(self, role):
        return {"version": self.signed[role]["version"], **description(self.bytes(role))}

    def publish(self):
        """Signs and describes all below the root, as it stands, at its present versions."""
        self.signed["snapshot"]["meta"] = {}
        for role in [*self.delegated, "targets"]:
            self.write(role)
            self.signed["snapshot"]["meta"][f"{role}.json"] = self.describe(role)
        self.publish_snapshot()

    def publish_snapshot(self):
        self.write("snapshot")
        self.signed["timestamp"]["meta"] = {"snapshot.json": self.describe("snapshot")}
        self.write("timestamp")

    def release(self):
        """publish, one version later for every role below the root."""
        for role in ("timestamp", "snapshot", "targets"):
            self.signed[role]["version"] += 1
        self.publish()

    def add_target(self, path, data, role="targets"):
        self.signed[role]["targets"][path] = description(data)
        folder, _, last = path.rpartition("/")
        prefix = f"targets/{folder}/" if folder else "targets/"
        digest = hashlib.sha256(data).hexdigest()
        served = f"{digest}.{last}" if self.signed["root"]["consistent_snapshot"] else last
        self.files[prefix + served] = data
        return prefix + served

    def delegate(self, role, parent="targets", terminating=False, threshold=1, **matching):
        """Delegates from `parent` to `role`: paths=[…] or path_hash_prefixes=[…]."""
        if role not in self.signed:
            self.signers[role] = [CryptoSigner.generate_ed25519()]
            self.signed[role] = metadata("targets", targets={})
            self.delegated.append(role)
        below = self.signed[parent].setdefault("delegations", {"keys": {}, "roles": []})
        below["keys"].update({s.public_key.keyid: key_entry(s) for s in self.signers[role]})
        below["roles"].append({
            "name": role, "keyids": [s.public_key.keyid for s in self.signers[role]],
            "threshold": threshold, "terminating": terminating, **matching})

    def state(self):
        """What `restore` brings back: the served files and the metadata below them."""
        return copy.deepcopy(self.signed), dict(self.files), copy.copy(self.signers)

    def restore(self, state):
        signed, files, signers = state
        self.signed, self.files = copy.deepcopy(signed), dict(files)
        self.signers = copy.copy(signers)
