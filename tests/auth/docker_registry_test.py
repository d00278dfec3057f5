#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Debian's docker-registry with a password file, and with a token server: pushed to by skopeo and by
kiln, read by kiln, each with the file of logins that skopeo itself wrote.

Wants KILN_BIN with kiln-registry in it for the pushes, docker-registry, skopeo and openssl; exit status 77 without one of them.
"""

import json
import shutil
import subprocess
import sys
import unittest

import docker_registry
import auth_test


class DockerRegistry(auth_test.AuthTest):
    def start(self, auth, tls=None):
        return docker_registry.start(self, self.work, auth, tls)

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

    def kiln_push(self, url, expected=auth_test.OK, words=()):
        """The tags that were written; an error is a document too."""
        program = auth_test.KILN.parent / "kiln-registry"
        if not program.exists():
            self.skipTest("kiln-registry is not built")
        run = subprocess.run([program, "push", "--json", "--registry",
                              self.root, "--to", url], env=self.environment, capture_output=True,
                             text=True, timeout=60)
        self.assertEqual(run.returncode, expected, run.stderr)
        for word in words:
            self.assertIn(word, run.stderr)
        self.assertNotIn("SECRET", run.stdout + run.stderr)
        document = json.loads(run.stdout)
        if expected != auth_test.OK:
            self.assertEqual(document["schema"], "kiln.error/1")
            return None
        return document["packages"][0]["pushed"]

    def test_push_over_tls_with_a_password_file(self):
        tls = docker_registry.make_certificate(self.work)
        host = self.start(docker_registry.password_file(self.work), tls)
        url = f"https://{host}/team"
        self.kiln_push(url, auth_test.NETWORK, ["certificate", "SSL_CERT_FILE"])
        self.environment["SSL_CERT_FILE"] = tls["certificate"]
        self.kiln_push(url, auth_test.NETWORK, ["wants a user and a password", "docker login"])
        self.docker_config(auths={host: auth_test.entry("user", "SECRET-wrong")})
        self.kiln_push(url, auth_test.NETWORK, ["status 401", "with the login of"])
        self.docker_config(auths={host: auth_test.entry()})
        self.assertEqual(self.kiln_push(url), ["1-cpu-base", "1"])
        self.assertEqual(self.kiln_push(url), [])
        self.install(url)

    def test_password_file(self):
        host = self.start(docker_registry.password_file(self.work))
        self.push(host)
        self.install(f"http://{host}/team")
        self.forget()
        del self.environment["REGISTRY_AUTH_FILE"]
        self.install(f"http://{host}/team", auth_test.NETWORK, [
            "wants a user and a password", f"podman login {host}"])
        self.docker_config(auths={host: auth_test.entry("user", "SECRET-wrong")})
        self.install(f"http://{host}/team", auth_test.NETWORK, [
            "status 401", "with the login of", "home/.docker/config.json"])
        self.docker_config(auths={host: auth_test.entry()})
        self.install(f"http://{host}/team")

    def test_token_server(self):
        tokens = docker_registry.SigningTokens(self, self.work)
        host = self.start(tokens.auth)
        self.kiln_push(f"http://{host}/own", auth_test.NETWORK, [
            "status 401", "without a login", 'the scope "repository:own/sample:pull,push"'])
        self.push(host)
        before = len(tokens.requests)
        self.assertEqual(self.kiln_push(f"http://{host}/own"), ["1-cpu-base", "1"])
        # One token for all that a push does, and one to ask whether the registry is signed.
        self.assertEqual([request.query["scope"] for request in tokens.requests[before:]],
                         [["repository:own/sample:pull,push"], ["repository:own/kiln.tuf:pull"]])
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
