#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What kiln registry attest signs, as cosign and oras take it from real registries; and what cosign signs,
as Kiln takes it.

    cosign_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE

Exits with 77 (skipped) without cosign and oras (ci/setup test) or docker-registry.
"""

import json
import pathlib
import shutil
import subprocess
import sys

from attested import NAME, TESTS, TRUST, AttestTest, main
from oci_server import OciServer
from servers import Nginx, OciRegistry

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "build/oci-tools"
SOURCE = ["--source", "https://git.example/kernels", "--commit", "0" * 40, "--builder", "https://ci.example/"]


class Others(AttestTest):
    def run_tool(self, *words, succeeds=True):
        words = [TOOLS / words[0], *words[1:]]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120,
                              env={"HOME": str(self.work), "PATH": "/usr/bin:/bin", "COSIGN_PASSWORD": ""})
        self.assertEqual(done.returncode == 0, succeeds, done.stdout + done.stderr)
        return done.stdout

    def place(self, url):
        return f"{url.removeprefix('http://')}/acme/{NAME}@{self.index()}"

    def push(self, url):
        self.kiln("registry", "push", "--registry", self.registry, "--to", f"{url}/acme")

    def verify(self, url, *words, key="release", **how):
        command = words or ("verify",)
        return self.run_tool("cosign", *command, "--key", self.public_key(key), "--insecure-ignore-tlog=true",
                             "--allow-http-registry", self.place(url), **how)

    def docker_registry(self):
        server = OciRegistry(self.work / "server")
        self.addCleanup(server.stop)
        return server.url

    def test_cosign_verifies_each_statement_and_refuses_another_key(self):
        self.public["edwards"] = self.make_key("edwards", "ed25519")
        self.attest(*SOURCE, "--records", self.record())
        self.attest("--only", "signature", key="edwards")
        for url in (self.docker_registry(), OciServer(self, referrers=True).url):
            with self.subTest(url):
                self.push(url)
                self.verify(url)
                self.verify(url, key="edwards")
                self.verify(url, key="other", succeeds=False)
                for kind in ("slsaprovenance1", "spdxjson", TESTS):
                    self.verify(url, "verify-attestation", "--type", kind)
                    self.verify(url, "verify-attestation", "--type", kind, key="other", succeeds=False)

    def test_kiln_takes_what_cosign_signed(self):
        url = self.docker_registry()
        self.push(url)
        self.require(registry=f"{url}/acme")
        self.install(f"{url}/acme", code=TRUST)
        key = self.work / "cosign"
        self.run_tool("cosign", "import-key-pair", "--key", self.private_key("release"), "--output-key-prefix", key)
        self.run_tool("cosign", "sign", "--key", f"{key}.key", "--use-signing-config=false", "--tlog-upload=false",
                      "--allow-http-registry", "--yes", self.place(url))
        self.install(f"{url}/acme")
        # And what was there stays when more is pushed: cosign finds both.
        self.attest("--only", "signature", key="other")
        self.push(url)
        self.verify(url)
        self.verify(url, key="other")

    def test_oras_finds_them_and_carries_them_on(self):
        self.attest(*SOURCE)
        url = self.docker_registry()
        self.push(url)
        place = self.place(url)
        found = json.loads(self.run_tool("oras", "discover", "--plain-http", "--format", "json", place))
        self.assertEqual(len(found["referrers"]), 3)
        found = json.loads(self.run_tool("oras", "discover", "--oci-layout", "--format", "json",
                                         f"{self.registry / NAME}@{self.index()}"))
        self.assertEqual(len(found["referrers"]), 3)
        # From one registry to another, and from there to Kiln.
        host = url.removeprefix("http://")
        self.run_tool("oras", "cp", "-r", "--from-plain-http", "--to-plain-http", f"{host}/acme/{NAME}:1",
                      f"{host}/copied/{NAME}:1")
        self.require(registry=f"{url}/copied")
        self.install(f"{url}/copied")

    def test_an_export_behind_nginx_is_enough(self):
        self.attest(*SOURCE)
        self.work.chmod(0o755)  # nginx's workers are another user where the master is root
        tree = self.work / "www"
        self.kiln("registry", "export-static", "--registry", self.registry, "--prefix", "acme", "--out", tree)
        server = Nginx(tree, self.work)
        self.addCleanup(server.stop)
        self.verify(server.url)
        self.verify(server.url, "verify-attestation", "--type", "spdxjson")
        self.require(registry=f"{server.url}/acme")
        self.install(f"{server.url}/acme")


if __name__ == "__main__":
    if not (TOOLS / "cosign").exists() or not shutil.which("docker-registry"):
        print("skipped: no cosign in build/oci-tools, or no docker-registry")
        sys.exit(77)
    main()
