#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A signed version on its way through real tools and servers: pushed to docker-registry over TLS with a
password file, copied by skopeo to one with a token server, by oras to layouts and back, packed into a tar and
restored, exported for nginx. Each hop has the index that was signed; from each, who trusts the root and
nothing else installs it. And a repository that python-tuf wrote is one that Kiln verifies.

    round_trips KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE

Exits with 77 (skipped) without docker-registry, skopeo, nginx or openssl. oras is the one in build/oci-tools, or
in the folder that KILN_OCI_TOOLS names; without it, its hops are skipped.
"""

import datetime
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "auth")]
import docker_registry  # noqa: E402
import publisher_test  # noqa: E402
from securesystemslib.signer import CryptoSigner  # noqa: E402
from publisher_test import NAME, TRUST  # noqa: E402
from tuf.api.metadata import (Metadata, MetaFile, Root, Snapshot, TargetFile, Targets,  # noqa: E402
                              Timestamp)


def nginx(tree, work):
    """tests/publish/servers.py's, whose name tests/auth/servers.py has here."""
    spec = importlib.util.spec_from_file_location("publish_servers", HERE.parent / "publish/servers.py")
    servers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(servers)
    return servers.Nginx(tree, work)


class RoundTrips(publisher_test.PublisherTest):
    def setUp(self):
        super().setUp()
        self.work.chmod(0o755)  # nginx's workers are another user where the master is root
        self.sign("--root", self.root)
        self.signed = self.index()
        self.environment["REGISTRY_AUTH_FILE"] = str(self.work / "auth.json")

    def run_tool(self, *words, **options):
        done = subprocess.run([*map(str, words)], env=self.environment, capture_output=True, timeout=60, **options)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout

    def tls_registry(self):
        folder = self.work / "tls"
        folder.mkdir()
        tls = docker_registry.make_certificate(folder)
        host = docker_registry.start(self, folder, docker_registry.password_file(folder), tls)
        self.environment["SSL_CERT_FILE"] = tls["certificate"]  # of Kiln, skopeo and oras
        self.log_in(host)
        return host

    def token_registry(self):
        folder = self.work / "token"
        folder.mkdir()
        host = docker_registry.start(self, folder, docker_registry.SigningTokens(self, folder).auth)
        self.log_in(host, "--tls-verify=false")
        return host

    def log_in(self, host, *options):
        self.run_tool("skopeo", "login", *options, "-u", docker_registry.USER, "--password-stdin", host,
                      input=docker_registry.PASSWORD.encode())

    def check(self, registry, *reading):
        """Another tool reads the index that was signed there, and a stranger installs it."""
        if reading:
            raw = self.run_tool("skopeo", "inspect", "--raw", *reading)
            self.assertEqual(publisher_test.digest_of(raw), self.signed)
        shutil.rmtree(self.work / "cache", ignore_errors=True)
        self.install(registry, code=TRUST, says="no root of it is trusted")
        self.trust(registry)
        self.install(registry)
        print(f"{self._testMethodName}: {self.signed} from {registry}")

    def skopeo_copy(self, source, to, *options):
        for tag in (f"{NAME}:1", "kiln.tuf:latest"):
            self.run_tool("skopeo", "--insecure-policy", "copy", "-q", "--all", "--preserve-digests", *options,
                          source.format(tag), to.format(tag))

    def oras(self, *words):
        self.run_tool(self.oras_path(), *words, "--registry-config" if "push" in words else "--from-registry-config",
                      self.environment["REGISTRY_AUTH_FILE"],
                      *([] if "push" in words else ["--to-registry-config", self.environment["REGISTRY_AUTH_FILE"]]))

    def oras_path(self):
        tools = os.environ.get("KILN_OCI_TOOLS") or HERE.parents[1] / "build/oci-tools"
        path = pathlib.Path(tools) / "oras"
        if not path.exists():
            self.skipTest(f"{path} is not there; run ci/setup test")
        return path

    def test_push_copy_and_export(self):
        tls = self.tls_registry()
        self.kiln("registry", "push", "--registry", self.registry, "--to", f"https://{tls}/team")
        self.check(f"https://{tls}/team", f"docker://{tls}/team/{NAME}:1")

        token = self.token_registry()
        self.skopeo_copy(f"docker://{tls}/team/{{}}", f"docker://{token}/copy/{{}}", "--dest-tls-verify=false")
        self.check(f"http://{token}/copy", "--tls-verify=false", f"docker://{token}/copy/{NAME}:1")

        back = self.work / "back"
        for name in (NAME, "kiln.tuf"):
            (back / name).mkdir(parents=True)
        self.skopeo_copy(f"docker://{token}/copy/{{}}", f"oci:{back}/{{}}", "--src-tls-verify=false")
        self.check(back, f"oci:{back}/{NAME}:1")

        self.kiln("registry", "export-static", "--registry", self.registry, "--out", self.work / "www")
        server = nginx(self.work / "www", self.work)
        self.addCleanup(server.stop)
        host = server.url.removeprefix("http://")
        self.check(server.url, "--tls-verify=false", f"docker://{host}/{NAME}:1")
        self.assertEqual(publisher_test.python_tuf_reads(self, server.url), self.signed)

    def test_oras_and_a_tar(self):
        self.oras_path()
        tls, token = self.tls_registry(), self.token_registry()
        layout = self.work / "layout"
        for tag in (f"{NAME}:1", "kiln.tuf:latest"):
            self.oras("cp", "-r", "--from-oci-layout", f"{self.registry}/{tag}", f"{tls}/oras/{tag}")
            self.oras("cp", "-r", "--to-plain-http", f"{tls}/oras/{tag}", f"{token}/oras/{tag}")
            self.oras("cp", "-r", "--from-plain-http", "--to-oci-layout", f"{token}/oras/{tag}", f"{layout}/{tag}")
        self.check(f"https://{tls}/oras", f"docker://{tls}/oras/{NAME}:1")
        self.check(f"http://{token}/oras", "--tls-verify=false", f"docker://{token}/oras/{NAME}:1")
        self.check(layout, f"oci:{layout}/{NAME}:1")

        for name in (NAME, "kiln.tuf"):
            self.run_tool("tar", "-cf", self.work / f"{name}.tar", "-C", layout / name, ".")
        shutil.rmtree(layout)
        for tag in (f"{NAME}:1", "kiln.tuf:latest"):
            name = tag.partition(":")[0]
            self.oras("cp", "-r", "--from-oci-layout", f"{self.work}/{name}.tar:{tag.partition(':')[2]}",
                      f"{tls}/restored/{tag}")
            (self.work / "restored" / name).mkdir(parents=True)
            self.run_tool("tar", "-xf", self.work / f"{name}.tar", "-C", self.work / "restored" / name)
        self.check(f"https://{tls}/restored", f"docker://{tls}/restored/{NAME}:1")
        self.check(self.work / "restored", f"oci:{self.work}/restored/{NAME}:1")
        self.kiln("registry", "check", "--registry", self.work / "restored")

    def test_a_bundle_is_installed_and_read_by_skopeo(self):
        self.trust(self.registry)
        bundle = self.work / "bundle.tar"
        self.kiln("bundle", "create", f"{NAME}@1", "--registry", self.registry, "--all-variants", "-o", bundle)
        self.run_tool("skopeo", "copy", "-q", "--all", "--preserve-digests", f"oci-archive:{bundle}:{NAME}:1",
                      f"oci:{self.work}/unbundled:1")
        raw = self.run_tool("skopeo", "inspect", "--raw", f"oci:{self.work}/unbundled:1")
        self.assertEqual(publisher_test.digest_of(raw), self.signed)
        shutil.move(self.registry, self.work / "gone")
        shutil.rmtree(self.work / "cache")
        self.install(self.registry, code=publisher_test.NOT_FOUND)
        self.kiln("install", f"{NAME}@1", "--registry", self.registry, "--from", bundle, "--device", "cpu")

    def test_a_repository_that_python_tuf_wrote(self):
        """As static files for kiln-tuf, and pushed by oras, or by hand into the folder, for kiln."""
        index = (self.registry / NAME / "blobs/sha256" / self.signed.removeprefix("sha256:")).read_bytes()
        files, targets = self.python_tuf_writes({f"{NAME}/1": index})
        metadata, served = self.work / "site/metadata", self.work / "site/targets"
        for folder in (metadata, served / NAME):
            folder.mkdir(parents=True)
        for name, data in files.items():
            (metadata / name).write_bytes(data)
        for name, data in targets.items():
            (served / name).write_bytes(data)
        (self.work / "root.json").write_bytes(files["1.root.json"])
        url = publisher_test.serve_folder(self, self.work / "site")
        client = [pathlib.Path(publisher_test.KILN).parent / "kiln-tuf", "--metadata-dir", self.work / "trusted"]
        self.run_tool(*client, "init", self.work / "root.json")
        (self.work / "got").mkdir()
        self.run_tool(*client, "--metadata-url", f"{url}/metadata", "--target-name", f"{NAME}/1", "--target-base-url",
                      f"{url}/targets", "--target-dir", self.work / "got", "download")
        [got] = (self.work / "got").iterdir()
        self.assertEqual(got.read_bytes(), index)

        oras, host = self.oras_path(), self.token_registry()
        self.skopeo_copy(f"oci:{self.registry}/{{}}", f"docker://{host}/theirs/{{}}", "--dest-tls-verify=false")
        self.run_tool(oras, "push", "--plain-http", "--registry-config", self.environment["REGISTRY_AUTH_FILE"],
                      "--artifact-type", "application/vnd.kiln.tuf.v1", f"{host}/theirs/kiln.tuf:latest",
                      *(f"{name}:application/vnd.tuf.metadata+json" for name in files), cwd=metadata)
        theirs = f"http://{host}/theirs"
        shutil.rmtree(self.work / "cache", ignore_errors=True)
        self.trust(theirs)  # the root of before: another one
        self.install(theirs, code=TRUST, says="signed by 0 of the keys that may")
        self.kiln("trust", "add", theirs, "--root", self.work / "root.json", "--replace")
        self.install(theirs)

    def python_tuf_writes(self, contents):
        """Metadata by python-tuf's own API, with each of its kinds of key: files, and targets by place."""
        expires = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0) + datetime.timedelta(days=3)
        signers = {"root": CryptoSigner.generate_ed25519(), "targets": CryptoSigner.generate_rsa(),
                   "snapshot": CryptoSigner.generate_ecdsa(), "timestamp": CryptoSigner.generate_ed25519()}
        root = Root(expires=expires)
        for role, signer in signers.items():
            root.add_key(signer.public_key, role)
        targets = Targets(expires=expires)
        places = {}
        for name, data in contents.items():
            described = targets.targets[name] = TargetFile.from_data(name, data, ["sha256", "sha512"])
            folder, _, last = name.rpartition("/")
            places[f"{folder}/{described.hashes['sha256']}.{last}"] = data

        def signed(role, document):
            metadata = Metadata(document)
            metadata.sign(signers[role])
            return metadata.to_bytes()

        files = {"1.root.json": signed("root", root), "1.targets.json": signed("targets", targets)}
        snapshot = Snapshot(expires=expires, meta={
            "targets.json": MetaFile.from_data(1, files["1.targets.json"], ["sha256"])})
        files["1.snapshot.json"] = signed("snapshot", snapshot)
        files["timestamp.json"] = signed("timestamp", Timestamp(
            expires=expires, snapshot_meta=MetaFile.from_data(1, files["1.snapshot.json"], ["sha256"])))
        return files, places


if __name__ == "__main__":
    for tool in ("docker-registry", "skopeo", "nginx", "openssl"):
        if not shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin"):
            print(f"skipped: {tool} is not installed; run ci/setup test")
            sys.exit(77)
    publisher_test.KILN_REGISTRY, publisher_test.KILN, publisher_test.FIXTURE = map(os.path.abspath, sys.argv[1:4])
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
