#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Debian's docker-registry with a password file, and with a token server: pushed to by skopeo, read
by kiln with the file of logins that skopeo itself wrote.

Wants KILN_BIN, docker-registry, skopeo and openssl; exit status 77 without one of them.
"""

import base64
import crypt
import json
import pathlib
import secrets
import shutil
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import forge  # noqa: E402
import test_auth  # noqa: E402
from servers import Server, basic  # noqa: E402

LOGIN = basic("user", "SECRET-password")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")


class DockerRegistry(test_auth.AuthTest):
    def start(self, auth):
        """Runs docker-registry and returns its host:port once it answers."""
        host = f"127.0.0.1:{free_port()}"
        (self.work / "config.json").write_text(json.dumps({  # JSON is YAML
            "version": "0.1", "log": {"level": "error", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self.work / "storage")}},
            "http": {"addr": host}, "auth": auth}))
        log = open(self.work / "registry.log", "w")
        self.addCleanup(log.close)
        server = subprocess.Popen(["docker-registry", "serve", self.work / "config.json"],
                                  stdout=log, stderr=log)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://{host}/v2/")
            except urllib.error.HTTPError as error:
                self.assertEqual(error.code, 401)
                return host
            except OSError:
                time.sleep(0.05)
        self.fail((self.work / "registry.log").read_text())

    def skopeo(self, *arguments, **options):
        run = subprocess.run(["skopeo", *arguments], env=self.environment, capture_output=True,
                             text=True, timeout=60, **options)
        self.assertEqual(run.returncode, 0, run.stderr)

    def push(self, host):
        """Logs in, which writes auth.json, and pushes what the folder registry holds."""
        self.environment["REGISTRY_AUTH_FILE"] = str(self.work / "auth.json")
        self.skopeo("login", "--tls-verify=false", "-u", "user", "--password-stdin", host,
                    input="SECRET-password")
        self.skopeo("--insecure-policy", "copy", "--all", "--preserve-digests",
                    "--dest-tls-verify=false", f"oci:{self.root}/sample:1",
                    f"docker://{host}/team/sample:1")

    def test_password_file(self):
        hashed = crypt.crypt("SECRET-password", crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16))
        (self.work / "htpasswd").write_text(f"user:{hashed}\n")
        host = self.start({"htpasswd": {"realm": "tests", "path": str(self.work / "htpasswd")}})
        self.push(host)
        self.install(f"http://{host}/team")
        self.forget()
        del self.environment["REGISTRY_AUTH_FILE"]
        self.install(f"http://{host}/team", test_auth.NETWORK, [
            "wants a user and a password", f"podman login {host}"])
        self.docker_config(auths={host: test_auth.entry("user", "SECRET-wrong")})
        self.install(f"http://{host}/team", test_auth.NETWORK, [
            "status 401", "with the login of", "home/.docker/config.json"])
        self.docker_config(auths={host: test_auth.entry()})
        self.install(f"http://{host}/team")

    def test_token_server(self):
        key, certificate = self.work / "key.pem", self.work / "cert.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key,
                        "-out", certificate, "-days", "2", "-subj", "/CN=tokens"],
                       check=True, capture_output=True)
        der = subprocess.run(["openssl", "x509", "-in", certificate, "-outform", "DER"],
                             check=True, capture_output=True).stdout

        def give(request):
            """A signed token for what was asked: push for the user, pull for everybody."""
            known = request.headers["Authorization"] == LOGIN
            access = []
            for scope in request.query.get("scope", []):
                kind, name, actions = scope.split(":")
                wanted = actions.split(",")
                granted = wanted if known else [each for each in wanted if each == "pull"]
                access.append({"type": kind, "name": name, "actions": granted})
            now = int(time.time())
            head = {"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(der).decode()]}
            claims = {"iss": "tests", "sub": "user", "aud": "registry", "exp": now + 300,
                      "nbf": now - 10, "iat": now, "jti": secrets.token_hex(8), "access": access}
            signed = b".".join(base64url(json.dumps(part).encode()) for part in (head, claims))
            signature = subprocess.run(["openssl", "dgst", "-sha256", "-sign", key], input=signed,
                                       check=True, capture_output=True).stdout
            token = b".".join((signed, base64url(signature))).decode()
            return 200, [("Content-Type", "application/json")], json.dumps(
                {"token": token, "expires_in": 300}).encode()

        tokens = Server(self, give)
        host = self.start({"token": {"realm": tokens.url + "/token", "service": "registry",
                                     "issuer": "tests", "rootcertbundle": str(certificate)}})
        self.push(host)
        del self.environment["REGISTRY_AUTH_FILE"]
        before = len(tokens.requests)
        self.install(f"http://{host}/team")
        [request] = tokens.requests[before:]
        self.assertEqual(request.query["scope"], ["repository:team/sample:pull"])
        self.assertIsNone(request.headers["Authorization"])


if __name__ == "__main__":
    for tool in ("docker-registry", "skopeo", "openssl"):
        if shutil.which(tool) is None:
            print(f"skipped: {tool} is not installed")
            sys.exit(77)
    unittest.main()
