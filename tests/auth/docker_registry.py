# SPDX-License-Identifier: Apache-2.0
"""Debian's docker-registry with a password file, with TLS, and with a token server that signs."""

import base64
import crypt
import json
import secrets
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request

from servers import Server, basic

USER, PASSWORD = "user", "SECRET-password"
LOGIN = basic(USER, PASSWORD)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def start(test, folder, auth, tls=None):
    """Runs it in `folder` and returns its host:port once it answers. tls: {certificate, key}."""
    host = f"127.0.0.1:{free_port()}"
    context = ssl.create_default_context(cafile=tls["certificate"]) if tls else None
    (folder / "config.json").write_text(json.dumps({  # JSON is YAML
        "version": "0.1", "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "http": {"addr": host, **({"tls": tls} if tls else {})}, "auth": auth}))
    log = open(folder / "registry.log", "w")
    test.addCleanup(log.close)
    server = subprocess.Popen(["docker-registry", "serve", folder / "config.json"], stdout=log, stderr=log)
    test.addCleanup(server.wait)
    test.addCleanup(server.terminate)
    for _ in range(200):
        try:
            urllib.request.urlopen(f"{'https' if tls else 'http'}://{host}/v2/", context=context)
        except urllib.error.HTTPError as error:
            test.assertEqual(error.code, 401)
            return host
        except OSError:
            time.sleep(0.05)
    test.fail((folder / "registry.log").read_text())


def password_file(folder):
    hashed = crypt.crypt(PASSWORD, crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16))
    (folder / "htpasswd").write_text(f"{USER}:{hashed}\n")
    return {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}


def make_certificate(folder, name="127.0.0.1"):
    """A self-signed one, as docker-registry is told of it."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", folder / "key.pem", "-out",
                    folder / "cert.pem", "-days", "2", "-subj", f"/CN={name}", "-addext",
                    "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return {"certificate": str(folder / "cert.pem"), "key": str(folder / "key.pem")}


class SigningTokens(Server):
    """Gives a signed token for what was asked: push for the user, pull for everybody. `auth` tells
    docker-registry of it."""

    def __init__(self, test, folder):
        self.pair = make_certificate(folder, "tokens")
        der = subprocess.run(["openssl", "x509", "-in", self.pair["certificate"], "-outform", "DER"], check=True,
                             capture_output=True).stdout
        self.head = {"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(der).decode()]}
        super().__init__(test, self.give)
        self.auth = {"token": {"realm": self.url + "/token", "service": "registry", "issuer": "tests",
                               "rootcertbundle": self.pair["certificate"]}}

    def give(self, request):
        known = request.headers["Authorization"] == LOGIN
        access = []
        for scope in request.query.get("scope", []):
            kind, name, actions = scope.split(":")
            wanted = actions.split(",")
            granted = wanted if known else [each for each in wanted if each == "pull"]
            access.append({"type": kind, "name": name, "actions": granted})
        now = int(time.time())
        claims = {"iss": "tests", "sub": USER, "aud": "registry", "exp": now + 300, "nbf": now - 10, "iat": now,
                  "jti": secrets.token_hex(8), "access": access}
        signed = b".".join(base64url(json.dumps(part).encode()) for part in (self.head, claims))
        signature = subprocess.run(["openssl", "dgst", "-sha256", "-sign", self.pair["key"]], input=signed, check=True,
                                   capture_output=True).stdout
        token = b".".join((signed, base64url(signature))).decode()
        return 200, [("Content-Type", "application/json")], json.dumps({"token": token, "expires_in": 300}).encode()
