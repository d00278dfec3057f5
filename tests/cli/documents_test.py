#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each document that kiln and kiln-registry print with --json is as docs/schemas says, and no schema is stale.

    documents_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import json
import re
import subprocess

import documents
from world import INTEGRITY, KILN, KILN_REGISTRY, NO_VARIANT, NOT_FOUND, OK, USAGE, World, main
from oci_server import OciServer  # world says where it is

# Checked where its compilers are, tests/matrix/build_test.sh, and where a version has a check, proof_test.py, tune_test.py.
OF_OTHERS = {"kiln.build/1", "kiln.test/1", "kiln.diff/1", "kiln.tune/1"}


class Documents(World):
    def setUp(self):
        super().setUp()
        self.seen = set()

    def printed(self, program, *words, code=OK):
        document = json.loads(self.run_command(program, *words, "--json", code=code).stdout)
        documents.check(document)
        self.seen.add(document["schema"])
        return document

    def serve(self):
        server = subprocess.Popen([KILN_REGISTRY, "serve", "--json", "--registry", self.registry], stdout=subprocess.PIPE, text=True)
        with server:
            document, said = "", None
            while said != "}\n":
                said = server.stdout.readline()
                document += said
            server.terminate()
        documents.check(json.loads(document))
        self.seen.add("kiln.serve/1")

    def test_every_document_is_as_its_schema_says(self):
        kiln = lambda *words, code=OK: self.printed(KILN, *words, code=code)  # noqa: E731
        registry = lambda *words, code=OK: self.printed(KILN_REGISTRY, *words, code=code)  # noqa: E731
        one = ["publish", "--registry", self.registry, "--allow-untested", "*"]
        for folder in ("two", "next", "next"):
            registry(*one, self.built / folder)
        for name in ("root", "targets", "online"):
            registry("key", self.work / name)
        registry("key", self.work / "p256", "--type", "ecdsa")
        keys = ["--registry", self.registry, "--key", self.work / "targets", "--key", self.work / "online"]
        root = self.work / "root.json"
        registry("init", "--root-key", self.work / "root.pub", "--targets-key", self.work / "targets.pub", "--online-key",
                 self.work / "online.pub", "--out", root)
        registry("sign", root, "--key", self.work / "root")
        registry("sign", root)
        registry("sign", "--root", root, *keys[:4])  # without the online key
        registry("attest", "tiny-op@2", "--registry", self.registry, "--key", self.work / "p256")
        registry("sign", "--root", root, *keys)
        registry("advisory", "publish", "KA-1", "--text", "slow", "--package", "tiny-op", *keys)
        registry("advisory", "list", "--registry", self.registry)
        registry("yank", "tiny-op@1", "--reason", "slow", *keys)
        registry(*one, self.built / "four/alpha")
        registry(*one, self.built / "acme")
        registry("sign", "--only", "alpha", "--registry", self.registry, "--key", self.work / "online")  # it waits for the other key
        registry("sign", self.registry / "kiln.tuf/draft", "--root", root)
        registry("sign", *keys)
        registry("list", "--registry", self.registry)
        registry("check", "--registry", self.registry)
        registry("export-static", "--registry", self.registry, "--out", self.work / "www")
        registry("push", "--registry", self.registry, "--to", OciServer(self).url)
        (self.work / "CARD.md").write_text("# tiny-op\n")
        registry("describe", "tiny-op@2", self.work / "CARD.md", "--registry", self.registry)
        registry("site", self.work / "site", "--registry", self.registry)
        registry("list", "--registry", self.work / "none", code=NOT_FOUND)

        kiln("fly", code=USAGE)
        kiln("trust", "add", self.registry, "--unsigned")
        kiln("trust", "list")
        kiln("trust", "remove", self.registry)
        kiln("trust", "add", self.registry, "--root", root)
        self.environment["KILN_UNSIGNED"] = ""
        kiln("trust", "require", self.registry, "--package", "tiny-*", "--key", self.work / "p256.pub")
        kiln("trust", "list")
        kiln("info", "acme-op")
        for words in (["search"], ["info", "tiny-op"], ["resolve", "tiny-op@2", "--explain"], ["host"], ["login"],
                      ["login", "https://registry.example"], ["cache", "dir"], ["lock", "tiny-op@2"], ["outdated"], ["audit"]):
            kiln(*words)
        kiln("resolve", "tiny-op@2", "--variant", "cu12.9-sm_90a-x86_64", "--device", "cpu", code=NO_VARIANT)
        for words in (["add", "tiny-op"], ["update"], ["install", "tiny-op@2", "--device", "cpu"], ["path", "tiny-op@2"],
                      ["install", "acme-op@1", "--dev"], ["path", "acme-op@1", "--dev"], ["list"], ["cache", "verify"],
                      ["cache", "repair"], ["cache", "gc"],
                      ["bundle", "create", "tiny-op@2", "-o", self.work / "b.tar"], ["bundle", "install", self.work / "b.tar"]):
            kiln(*words)
        self.environment |= {"KILN_OVERRIDE_SM": "9.0", "KILN_OVERRIDE_CUDA": "12.9"}
        kiln("host")
        kiln("doctor")
        kiln("resolve", "tiny-op@2", "--explain", code=NO_VARIANT)
        del self.environment["KILN_OVERRIDE_SM"], self.environment["KILN_OVERRIDE_CUDA"]
        kiln("doctor")
        kiln("doctor", "tiny-op@2", code=12)  # its library is none
        kiln("uninstall", "tiny-op", "--dry-run")
        [library] = (self.work / "cache/unpacked").glob("*/lib/*.so")
        library.chmod(0o644)
        library.write_text("damaged")
        kiln("cache", "verify", code=INTEGRITY)
        kiln("cache", "repair")
        kiln("remove", "tiny-op")

        kiln("new", "row-scale")
        kiln("build", "./row-scale", "--list", "--matrix", documents.ROOT / "build-matrix/matrix.json")
        self.serve()

        named = set()
        for folder in ("loader/cli", "registry", "build-matrix"):
            for path in (documents.ROOT / folder).rglob("*.cpp"):
                text = path.read_text()
                named |= {f"kiln.{kind}/1" for kind in re.findall(r'print_json\("([a-z-]+)"', text)}
                named |= set(re.findall(r'"schema", "(kiln\.[a-z.-]+/1)"|, "(kiln\.[a-z.-]+/1)"', text) and
                             [each for pair in re.findall(r'"schema", "(kiln\.[a-z.-]+/1)"|, "(kiln\.[a-z.-]+/1)"', text)
                              for each in pair if each])
        self.assertEqual(sorted(named - self.seen - OF_OTHERS), [], "print it here, and give it a schema")
        published = {json.loads(path.read_text())["properties"]["schema"]["const"] for path in documents.SCHEMAS.glob("*.json")}
        self.assertEqual(sorted(published - self.seen - OF_OTHERS), [])


if __name__ == "__main__":
    main()
