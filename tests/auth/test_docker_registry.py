#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Debian's docker-registry with a password file, and with a token server: pushed to by skopeo and by
kiln, read by kiln, each with the file of logins that skopeo itself wrote.

Wants KILN_BIN with kiln-registry in it for the pushes, docker-registry, skopeo and openssl; exit status 77 without one of them.
"""

import base64
import crypt
import json
import pathlib
import secrets
import shutil
import socket
import ssl
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
    def start(self, auth, tls=None):
        """Runs docker-registry and returns its host:port once it answers."""
        host = f"127.0.0.1:{free_port()}"
        context = ssl.create_default_context(cafile=tls["certificate"]) if tls else None
        (self.work / "config.json").write_text(json.dumps({  # JSON is YAML
            "version": "0.1", "log": {"level": "error", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self.work / "storage")}},
            "http": {"addr": host, **({"tls": tls} if tls else {})}, "auth": auth}))
        log = open(self.work / "registry.log", "w")
        self.addCleanup(log.close)
        server = subprocess.Popen(["docker-registry", "serve", self.work / "config.json"],
                                  stdout=log, stderr=log)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        for _ in range(200):
            try:
                urllib.request.urlopen(f"{'https' if tls else 'http'}://{host}/v2/", context=context)
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

    def kiln_push(self, url, expected=test_auth.OK, words=()):
        """The tags that were written."""
        program = test_auth.KILN.parent / "kiln-registry"
        if not program.exists():
            self.skipTest("kiln-registry is not built")
        run = subprocess.run([program, "push", "--json", "--registry",
                              self.root, "--to", url], env=self.environment, capture_output=True,
                             text=True, timeout=60)
        self.assertEqual(run.returncode, expected, run.stderr)
        for word in words:
            self.assertIn(word, run.stderr)
        self.assertNotIn("SECRET", run.stdout + run.stderr)
        return json.loads(run.stdout)["packages"][0]["pushed"] if run.stdout else None

    def password_file(self):
        hashed = crypt.crypt("SECRET-password", crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16))
        (self.work / "htpasswd").write_text(f"user:{hashed}\n")
        return {"htpasswd": {"realm": "tests", "path": str(self.work / "htpasswd")}}

    def test_push_over_tls_with_a_password_file(self):
        key, certificate = self.work / "key.pem", self.work / "cert.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key,
                        "-out", certificate, "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
                        "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        host = self.start(self.password_file(), {"certificate": str(certificate), "key": str(key)})
        url = f"https://{host}/team"
        self.kiln_push(url, test_auth.NETWORK, ["certificate", "SSL_CERT_FILE"])
        self.environment["SSL_CERT_FILE"] = str(certificate)
        self.kiln_push(url, test_auth.NETWORK, ["wants a user and a password", "docker login"])
        self.docker_config(auths={host: test_auth.entry("user", "SECRET-wrong")})
        self.kiln_push(url, test_auth.NETWORK, ["status 401", "with the login of"])
        self.docker_config(auths={host: test_auth.entry()})
        self.assertEqual(self.kiln_push(url), ["1-cpu-base", "1"])
        self.assertEqual(self.kiln_push(url), [])
        self.install(url)

    def test_password_file(self):
        host = self.start(self.password_file())
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
        self.kiln_push(f"http://{host}/own", test_auth.NETWORK, [
            "status 401", "without a login", 'the scope "repository:own/sample:pull,push"'])
        self.push(host)
        before = len(tokens.requests)
        self.assertEqual(self.kiln_push(f"http://{host}/own"), ["1-cpu-base", "1"])
        [request] = tokens.requests[before:]  # one token for all that a push does
        self.assertEqual(request.query["scope"], ["repository:own/sample:pull,push"])
        del self.environment["REGISTRY_AUTH_FILE"]
        self.install(f"http://{host}/own")
        self.forget()
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
