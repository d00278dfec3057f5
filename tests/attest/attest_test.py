#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What kiln registry attest signs, read by the book; how it is carried; and what kiln trust require
refuses, on the real commands.

    attest_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import base64
import functools
import http.server
import json
import shutil
import threading

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from attested import (BUNDLE, INDEX, INTEGRITY, MANIFEST, NAME, NOT_FOUND, OFFLINE, PROVENANCE, SBOM, SIGNATURE, TESTS,
                      TRUST, USAGE, AttestTest, digest_of, encoding, is_signed, main)
from mannered_server import ManneredServer
from oci_server import OciServer

SOURCE = ["--source", "https://git.example/kernels", "--commit", "0123456789abcdef0123456789abcdef01234567",
          "--builder", "https://ci.example/"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Signing(AttestTest):
    def test_a_statement_is_what_the_specifications_say(self):
        for kind in ("ecdsa", "ed25519"):
            with self.subTest(kind):
                public = self.make_key(kind, kind)
                said = self.attest("--only", "signature", key=kind)["versions"][0]
                self.assertEqual(len(said["added"]), 1)
                manifest, bundle = self.bundles()[-1]
                index = self.index()
                self.assertEqual(manifest["subject"], {"mediaType": INDEX, "digest": index,
                                                       "size": len(self.blob(index))})
                self.assertEqual((manifest["artifactType"], manifest["layers"][0]["mediaType"]), (BUNDLE, BUNDLE))
                self.assertEqual(manifest["config"], {"mediaType": "application/vnd.oci.empty.v1+json", "size": 2,
                                                      "digest": digest_of(b"{}")})
                self.assertEqual(manifest["annotations"]["dev.sigstore.bundle.predicateType"], SIGNATURE)
                self.assertEqual(bundle["mediaType"], BUNDLE)
                self.public[kind] = public
                self.assertEqual(base64.b64decode(bundle["verificationMaterial"]["publicKey"]["hint"]).hex(),
                                 self.fingerprint(kind))
                envelope = bundle["dsseEnvelope"]
                self.assertTrue(is_signed(envelope, public))
                self.assertFalse(is_signed(envelope, self.public["other"]))
                self.assertEqual(json.loads(base64.b64decode(envelope["payload"])), {
                    "_type": "https://in-toto.io/Statement/v1", "predicateType": SIGNATURE, "predicate": {},
                    "subject": [{"name": f"{NAME}@1", "digest": {"sha256": index.removeprefix("sha256:")}}]})

    def test_a_second_time_changes_nothing_and_another_key_joins(self):
        words = [*SOURCE, "--records", self.record()]
        first = self.attest(*words)["versions"][0]
        self.assertEqual([each.split()[0] for each in first["added"]], ["signature", "provenance", "sbom", "tests"])
        before = (self.registry / NAME / "index.json").read_bytes()
        again = self.attest(*words, SOURCE_DATE_EPOCH="1900000000")["versions"][0]
        self.assertEqual((again["added"], again["unchanged"]), ([], first["added"]))
        self.assertEqual((self.registry / NAME / "index.json").read_bytes(), before)
        self.assertEqual(len(self.attest("--only", "signature", key="other")["versions"][0]["added"]), 1)
        self.assertEqual(len(self.bundles()), 5)
        self.kiln("registry", "check", "--registry", self.registry)
        # More variants are another index, of which nothing was said; what was said of this one stays.
        old = self.list_tag()
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/two")
        self.assertIn(old, self.tags())
        self.assertNotIn(self.list_tag(), self.tags())
        self.kiln("registry", "check", "--registry", self.registry)

    def test_provenance_names_source_builder_and_libraries(self):
        self.attest(*SOURCE, "--only", "provenance", "--invocation", "https://ci.example/run/7")
        predicate = self.statements()[PROVENANCE]["predicate"]
        build = predicate["buildDefinition"]
        self.assertEqual(build["resolvedDependencies"], [
            {"uri": f"git+{SOURCE[1]}@{SOURCE[3]}", "digest": {"gitCommit": SOURCE[3]}}])
        self.assertEqual(build["externalParameters"] | {"variants": None}, {
            "package": NAME, "version": 1, "source": SOURCE[1], "commit": SOURCE[3], "variants": None})
        self.assertEqual(build["internalParameters"]["variants"]["cpu-x86-64-v3"]["library"], self.library())
        self.assertEqual(predicate["runDetails"]["builder"]["id"], SOURCE[5])
        self.assertEqual(predicate["runDetails"]["metadata"], {"invocationId": "https://ci.example/run/7"})

    def test_a_time_that_is_none_is_refused(self):
        for time in ("yesterday", "-1", "1e9", "253402300800", ""):
            self.attest("--only", "sbom", SOURCE_DATE_EPOCH=time, code=USAGE,
                        says=f'SOURCE_DATE_EPOCH is "{time}", expected seconds since 1970')
        self.assertNotIn(self.list_tag(), self.tags())

    def test_an_sbom_lists_every_file_with_its_digests(self):
        self.attest("--only", "sbom")
        document = self.statements()[SBOM]["predicate"]
        self.assertEqual((document["spdxVersion"], document["creationInfo"]["created"]),
                         ("SPDX-2.3", "2027-01-15T08:00:00Z"))
        files = {each["SPDXID"]: each for each in document["files"]}
        self.assertEqual(len(files), len(document["files"]))
        for path in (self.work / "built/one").glob("*/config.json"):
            for file in json.loads(path.read_text())["files"]:
                matching = [each for each in files.values() if each["fileName"] == "./" + file["path"]
                            and {"algorithm": "SHA256", "checksumValue": file["digest"][7:]} in each["checksums"]]
                self.assertGreaterEqual(len(matching), 1, file)
        ids = {*files, "SPDXRef-DOCUMENT", *(each["SPDXID"] for each in document["packages"])}
        for relation in document["relationships"]:
            self.assertIn(relation["spdxElementId"], ids)
            self.assertIn(relation["relatedSpdxElement"], ids)
        self.assertNotIn("kiln.dev/", json.dumps(document))
        self.attest("--only", "sbom")  # the same again is not signed again
        self.assertEqual(len(self.bundles()), 1)

    def test_an_sbom_has_ntia_s_minimum_elements_of_every_part(self):
        self.attest("--only", "sbom", "--supplier", "Acme", *SOURCE)
        document = self.statements()[SBOM]["predicate"]
        self.assertEqual(document["creationInfo"]["creators"][1], "Organization: Acme")
        self.assertTrue(document["documentNamespace"].startswith("urn:uuid:"))
        related = {end for each in document["relationships"] for end in (each["spdxElementId"], each["relatedSpdxElement"])}
        for package in document["packages"]:
            with self.subTest(package["SPDXID"]):
                self.assertTrue(package["supplier"].startswith("Organization: "), package)
                self.assertTrue(package["name"] and package["versionInfo"])
                [purl] = [each["referenceLocator"] for each in package["externalRefs"]]
                self.assertRegex(purl, r"^pkg:(oci/tiny-op@sha256%3A[0-9a-f]{64}|pypi/[a-z0-9-]+@[0-9.]+)$")
                self.assertIn(package["SPDXID"], related)

    def test_tests_keep_what_speaks_of_this_version_and_no_red_result_is_signed(self):
        strange = "sha256:" + "0" * 64
        self.attest("--only", "tests", "--records", self.record(libraries=[self.library(), strange]), "--records",
                    self.record("strange.json", libraries=[strange]))
        [record] = self.statements()[TESTS]["predicate"]["records"]
        self.assertEqual([each["library"] for each in record["results"]], [self.library()])
        self.attest("--only", "tests", "--records", self.record("red.json", failed=1), code=INTEGRITY, says="1 of 12")
        self.attest("--only", "tests", "--records", self.record("s.json", libraries=[strange]), code=NOT_FOUND)
        self.assertEqual(len(self.bundles()), 1)

    def test_what_cannot_be_signed_is_refused_before_anything_is_written(self):
        self.make_key("rsa", "rsa")
        self.attest(key="rsa", code=TRUST, says="P-256")
        self.attest("--only", "provenance", code=USAGE, says="--source")
        self.attest("--only", "tests", code=USAGE, says="--records")
        self.attest("--source", "https://git.example/x", "--commit", "abc", code=USAGE, says="whole hash")
        for words in (SOURCE[:2], SOURCE[2:4], SOURCE[4:], SOURCE[2:], ["--invocation", "https://ci.example/run/7"]):
            self.attest(*words, code=USAGE, says="provenance needs --source URL")
        self.attest("--toolchains", self.work / "no such file", code=NOT_FOUND)
        self.kiln("registry", "attest", f"{NAME}@7", "--registry", self.registry, "--key", self.private_key("release"),
                  code=NOT_FOUND)
        (self.work / "pins").write_text("not a pin\n")
        self.attest(*SOURCE, "--toolchains", self.work / "pins", code=INTEGRITY, says="not a pin")
        self.assertNotIn(self.list_tag(), self.tags())


    def test_all_versions_of_a_package_are_signed_or_none(self):
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/next")
        before = (self.registry / NAME / "index.json").read_bytes()
        words = ("registry", "attest", NAME, "--registry", self.registry, "--key", self.private_key("release"))
        self.kiln(*words, "--records", self.record(), code=NOT_FOUND, says=[f"{NAME}@2: no record", "nothing was signed"])
        self.assertEqual((self.registry / NAME / "index.json").read_bytes(), before)
        done = self.kiln(*words)["versions"]
        self.assertEqual([(each["version"], len(each["added"])) for each in done], [(1, 2), (2, 2)])

    def test_pins_stand_in_an_sbom_without_provenance(self):
        pins = self.work / "pins"
        pins.write_text(f"[zig]\nziglang==0.15.2 --hash=sha256:{'0' * 64}\n")
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/fleet")
        self.kiln("registry", "attest", "fleet-op", "--registry", self.registry, "--key", self.private_key("release"),
                  "--only", "sbom", "--toolchains", pins)
        [bundle] = [each for each in (path.read_bytes() for path in (self.registry / "fleet-op/blobs/sha256").iterdir())
                    if b"dsseEnvelope" in each[:2000] and each.startswith(b"{")]
        document = json.loads(base64.b64decode(json.loads(bundle)["dsseEnvelope"]["payload"]))["predicate"]
        tools = [each["name"] for each in document["packages"] if each["SPDXID"].startswith("SPDXRef-Tool-")]
        self.assertEqual(tools, ["ziglang"])


class Carrying(AttestTest):
    def setUp(self):
        super().setUp()
        self.attest()

    def push(self, server, **how):
        return self.kiln("registry", "push", "--registry", self.registry, "--to", f"{server.url}/acme", **how)

    def of_server(self, server):
        """The digests that hang on the index, as a server lists them."""
        _, body = server.documents[f"acme/{NAME}", self.list_tag()]
        return [each["digest"] for each in json.loads(body)["manifests"]]

    def test_a_server_without_the_api_keeps_the_list_as_a_tag_and_the_version_moves_last(self):
        server = OciServer(self)
        [pushed] = self.push(server)["packages"]
        self.assertEqual(pushed["referrers"], 2)
        self.assertEqual(len(self.of_server(server)), 2)
        self.assertEqual(server.sent()[-1], f"PUT /v2/acme/{NAME}/manifests/1")
        sent = len(server.sent())
        self.push(server)
        self.assertEqual(len(server.sent()), sent)

    def test_a_server_with_the_api_lists_them_itself(self):
        server = OciServer(self, referrers=True)
        self.push(server)
        self.assertNotIn(self.list_tag(), server.tags(f"acme/{NAME}"))
        self.require(registry=f"{server.url}/acme")
        self.install(f"{server.url}/acme")

    def test_a_server_that_lists_them_in_pages_and_says_null_for_nothing(self):
        for key in ("release", "other"):
            self.attest(key=key)
        server = ManneredServer(self)
        url = f"{server.url}/acme"
        self.kiln("search", "--registry", url)
        self.kiln("info", NAME, "--registry", url, code=NOT_FOUND, says="no version of it is published")
        self.push(server)
        self.assertTrue(self.push(server)["packages"][0]["referrers"] > 2)
        self.require(registry=url, key="other")
        self.install(url)

    def test_what_others_hung_there_stays_also_when_they_do_it_meanwhile(self):
        entry = {"mediaType": MANIFEST, "digest": "sha256:" + "a" * 64, "size": 9, "artifactType": "b/c"}
        lists = iter([[entry], [entry, entry | {"digest": "sha256:" + "b" * 64}]])

        def meddle(request, serve):
            # The list grows behind the back of who read it.
            if request.is_a("GET", self.list_tag()) and (now := next(lists, None)):
                server.documents[f"acme/{NAME}", self.list_tag()] = (INDEX, json.dumps(
                    {"schemaVersion": 2, "mediaType": INDEX, "manifests": now}).encode())
            return serve()

        server = OciServer(self, meddle)
        for digest in "ab":
            server.documents[f"acme/{NAME}", "sha256:" + digest * 64] = (MANIFEST, b"{}")
        self.push(server)
        self.assertEqual(len(self.of_server(server)), 4)

    def test_a_server_that_leaves_one_out_never_gets_the_version(self):
        def meddle(request, serve):
            if request.is_a("GET", "/referrers/"):
                return 200, {"Content-Type": INDEX}, b'{"schemaVersion":2,"manifests":[]}'
            return serve()

        server = OciServer(self, meddle)
        self.push(server, code=INTEGRITY, says="leaves out 2")
        self.assertNotIn("1", server.tags(f"acme/{NAME}"))

    def test_on_top_of_a_server_nothing_is_said_twice(self):
        server = OciServer(self)
        self.push(server)
        url = f"{server.url}/acme"
        hung = self.of_server(server)
        shutil.rmtree(self.registry)
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/one")
        said = self.attest("--onto", url, SOURCE_DATE_EPOCH="1900000000")["versions"][0]
        self.assertEqual((said["added"], len(said["unchanged"])), ([], 2))
        self.push(server)
        self.assertEqual(self.of_server(server), hung)
        # What another key says there is not taken over.
        said = self.attest("--only", "signature", "--onto", url, key="other")["versions"][0]
        self.assertEqual((len(said["added"]), said["unchanged"]), (1, []))
        self.assertEqual(len(self.bundles()), 3)

    def test_an_export_and_a_bundle_carry_them(self):
        self.kiln("registry", "export-static", "--registry", self.registry, "--out", self.work / "www")
        tree = self.work / "www/v2" / NAME
        self.assertEqual((tree / "referrers" / self.index()).read_bytes(),
                         (tree / "manifests" / self.list_tag()).read_bytes())
        handler = functools.partial(Quiet, directory=str(self.work / "www"))
        web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=web.serve_forever, daemon=True).start()
        self.addCleanup(web.server_close)
        self.addCleanup(web.shutdown)
        url = f"http://127.0.0.1:{web.server_port}"
        self.require(registry=url)
        self.install(url)
        # The bundle is made from the web server, and installed where there is none.
        bundle = self.work / "kernels.tar"
        self.kiln("bundle", "create", f"{NAME}@1", "--registry", url, "--all-variants", "-o", bundle)
        same = self.work / "same.tar"
        self.forget("cache")
        self.kiln("bundle", "create", f"{NAME}@1", "--registry", url, "--all-variants", "-o", same)
        self.assertEqual(bundle.read_bytes(), same.read_bytes())
        self.forget()
        self.install(url, "--from", bundle, KILN_OFFLINE="1")
        self.install(url, KILN_OFFLINE="1")
        self.forget()
        bare = self.work / "bare"
        shutil.copytree(self.registry, bare)
        self.relist_nothing(bare)
        self.kiln("bundle", "create", f"{NAME}@1", "--registry", bare, "--all-variants", "-o", self.work / "bare.tar")
        self.forget()
        self.install(url, "--from", self.work / "bare.tar", KILN_OFFLINE="1", code=TRUST)

    def relist_nothing(self, registry):
        path = registry / NAME / "index.json"
        document = json.loads(path.read_text())
        document["manifests"] = [each for each in document["manifests"] if "sha256-" not in json.dumps(each)]
        path.write_text(json.dumps(document))


class Requiring(AttestTest):
    def signed(self, statement, key="release"):
        """A bundle of any statement, signed by the book."""
        private = serialization.load_pem_private_key(self.private_key(key).read_bytes(), None)
        kind = statement.pop("payloadType", "application/vnd.in-toto+json")
        payload = json.dumps(statement).encode()
        signature = private.sign(encoding(kind, payload), ec.ECDSA(hashes.SHA256()))
        return {"mediaType": BUNDLE, "verificationMaterial": {"publicKey": {"hint": ""}}, "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(), "payloadType": kind,
            "signatures": [{"sig": base64.b64encode(signature).decode()}]}}

    def statement(self, **change):
        return {"_type": "https://in-toto.io/Statement/v1", "predicateType": SIGNATURE, "predicate": {},
                "subject": [{"digest": {"sha256": self.index().removeprefix("sha256:")}}]} | change

    def hang_signed(self, **change):
        self.hang(json.dumps(self.signed(self.statement(**change))).encode())

    def test_only_what_the_key_signed_is_installed_and_the_refusal_names_both_sides(self):
        self.require()
        short = self.fingerprint("release")[:12]
        self.install(code=TRUST, says=["found the statement signature of none", short, "expected 1 of them"])
        self.assertFalse((self.work / "cache/unpacked").exists())
        self.attest("--only", "signature", key="other")
        self.install(code=TRUST, says=["1 such statements there", short])
        self.attest("--only", "signature")
        self.install()
        self.kiln("path", f"{NAME}@1", "--registry", self.registry, "--device", "cpu")

    def test_where_openssl_may_not_verify_nothing_is_called_unsigned(self):
        # No algorithm of the default provider has the property that a configuration for FIPS asks for.
        (self.work / "fips.cnf").write_text("openssl_conf = all\n[all]\nalg_section = algorithms\n"
                                            "[algorithms]\ndefault_properties = fips=yes\n")
        fips = {"OPENSSL_CONF": str(self.work / "fips.cnf")}
        for kind in ("ecdsa", "ed25519"):
            with self.subTest(kind):
                self.public[kind] = self.make_key(kind, kind)
                self.attest("--only", "signature", key=kind)
                self.require(key=kind, **fips)
                self.assertEqual(self.kiln("trust", "list", **fips)["required"][0]["keys"], [self.fingerprint(kind)])
                self.install(code=TRUST, says=["signature of none of the keys " + self.fingerprint(kind)[:12],
                                               f'verifies no signature of type "{kind}", as where it is configured for FIPS'],
                             **fips)
                self.install()
                self.forget("cache", ".config/kiln/verified", ".config/kiln/trust.json")

    def test_a_threshold_counts_keys_and_not_signatures(self):
        self.require("--threshold", 2, key="release,other")
        self.attest("--only", "signature")
        self.hang_signed()
        self.install(code=TRUST, says=[f"signature of {self.fingerprint('release')[:12]} of", "expected 2 of them"])
        self.attest("--only", "signature", key="other")
        self.install()
        self.require("--threshold", 3, key="release,other", code=USAGE)
        self.require("--threshold", 2, key="release,release", code=USAGE)  # one key twice is one

    def test_each_statement_package_and_registry_has_its_own_requirement(self):
        self.attest(*SOURCE)
        self.require("--statement", "provenance", key="other")
        self.install(code=TRUST, says="statement provenance")
        self.require("--statement", "provenance")  # in the place of the one before
        self.require("--statement", "signature", "--package", "other-*", key="other")
        self.install()
        [first, second] = self.kiln("trust", "list")["required"]
        self.assertEqual((first["statement"], first["keys"]), ("provenance", [self.fingerprint("release")]))
        self.assertEqual(second["package"], "other-*")
        self.require("--statement", "signature", registry=self.registry.parent, key="other")  # all below it
        self.install(code=TRUST)
        self.kiln("trust", "require", self.registry.parent, "--none")
        self.install()
        self.kiln("trust", "require", self.registry.parent, "--none", code=NOT_FOUND)

    def test_tests_must_be_of_the_very_library(self):
        self.require("--statement", "tests")
        library = self.library()
        results = [{"library": "sha256:" + "0" * 64, "cases": 12, "failed": 0},
                   {"library": library, "cases": 12, "failed": 1}, {"library": library, "cases": 0, "failed": 0}]
        self.hang_signed(predicateType=TESTS, predicate={"records": [{"hardware": "EPYC", "results": results}]})
        self.install(code=TRUST, says=[f"library {library[7:19]}", "0 such statements"])
        self.attest("--only", "tests", "--records", self.record())
        self.install()

    def test_what_was_verified_needs_no_network_and_no_second_look(self):
        self.attest()
        server = OciServer(self)
        url = f"{server.url}/acme"
        self.kiln("registry", "push", "--registry", self.registry, "--to", url)
        self.require(registry=url)
        self.install(url)
        asked = len(server.requests)
        self.install(url)
        verified = self.work / ".config/kiln/verified"
        self.assertEqual(len(verified.read_text().split()), 1)
        # Without that file, out of the cache; without both, the registry is asked, or nobody.
        verified.unlink()
        self.install(url, KILN_OFFLINE="1")
        self.assertEqual(len(server.requests), asked)
        self.forget(".config/kiln/verified", "cache/attested")
        self.install(url, KILN_OFFLINE="1", code=OFFLINE)
        self.install(url)
        self.assertGreater(len(server.requests), asked)
        [kept] = (self.work / "cache/attested").iterdir()
        self.kiln("cache", "gc")
        self.assertTrue(kept.exists())
        kept.chmod(0o644)
        kept.write_text(kept.read_text().replace("dsseEnvelope", "dsseEnvelopf"))
        verified.unlink()
        self.install(url)  # what is damaged is fetched again
        self.kiln("cache", "gc", "--unlocked")
        self.assertFalse(kept.exists())

    def test_a_changed_requirement_is_looked_at_anew(self):
        self.attest("--only", "signature")
        self.require()
        self.install()
        self.require(key="other")
        self.install(code=TRUST)
        self.install(KILN_OFFLINE="1", code=OFFLINE)
        # Nor is its library named, or called available.
        self.kiln("path", f"{NAME}@1", "--registry", self.registry, "--device", "cpu", code=NOT_FOUND)
        self.require()
        self.kiln("path", f"{NAME}@1", "--registry", self.registry, "--device", "cpu")

    def test_statements_of_any_other_shape_count_for_nothing(self):
        self.require()
        good = self.signed(self.statement())
        envelope = good["dsseEnvelope"]
        other = base64.b64encode(json.dumps(self.statement(predicate={"x": 1})).encode()).decode()
        wrong = {
            "another payload": good | {"dsseEnvelope": envelope | {"payload": other}},
            "another payload type": good | {"dsseEnvelope": envelope | {"payloadType": "text/plain"}},
            "a signed other type": self.signed(self.statement(payloadType="text/plain")),
            "another subject": self.signed(self.statement(subject=[{"digest": {"sha256": "0" * 64}}])),
            "no subject": self.signed(self.statement(subject=[])),
            "another hash": self.signed(self.statement(subject=[{"digest": {"sha512": "0" * 128}}])),
            "another statement": self.signed(self.statement(_type="https://in-toto.io/Statement/v0.1")),
            "another predicate": self.signed(self.statement(predicateType=SBOM)),
            "another key": self.signed(self.statement(), "other"),
            "nine signatures": good | {"dsseEnvelope": envelope | {"signatures": envelope["signatures"] * 9}},
            "no signature": good | {"dsseEnvelope": envelope | {"signatures": []}},
            "no base64": good | {"dsseEnvelope": envelope | {"payload": envelope["payload"] + "="}},
            "a message signature": {"mediaType": BUNDLE, "messageSignature": {}},
            "another bundle": good | {"mediaType": "application/vnd.dev.sigstore.bundle+json;version=0.1"},
            "too large": good | {"filling": "x" * (2 << 20)},
        }
        for name, bundle in wrong.items():
            with self.subTest(name):
                self.relist(lambda _: [])
                self.hang(json.dumps(bundle).encode())
                self.install(code=TRUST)
        with self.subTest("not JSON"):
            self.hang(b"\xff{")
            self.install(code=TRUST)
        with self.subTest("another media type"):
            self.relist(lambda _: [])
            self.hang(json.dumps(good).encode(), media_type="application/json")
            self.install(code=TRUST)
        with self.subTest("a manifest with another subject"):
            self.relist(lambda _: [])
            subject = {"mediaType": INDEX, "digest": "sha256:" + "0" * 64, "size": 7}
            self.hang(json.dumps(good).encode(), subject=subject)
            self.install(code=TRUST, says="has another subject")
        self.relist(lambda _: [])
        self.hang(json.dumps(good).encode())
        self.install()

    def test_a_list_may_be_long_and_wrong(self):
        self.require()
        good = json.dumps(self.signed(self.statement())).encode()
        # A wrong type in the list does not hide it; sixteen that look right before it do.
        self.hang(good, artifact_type="application/vnd.oci.empty.v1+json")
        [ours] = json.loads(self.blob(self.tags()[self.list_tag()]))["manifests"]

        def junk(count, kind):
            return [{"mediaType": MANIFEST, "digest": f"sha256:{number:064x}", "size": 100, "artifactType": kind}
                    for number in range(count)]

        self.relist(lambda _: [*junk(15, "x/y"), ours])
        self.install()
        self.forget()
        self.relist(lambda _: [*junk(20000, "x/y"), ours | {"artifactType": BUNDLE}])
        self.install()
        self.forget()
        self.relist(lambda _: [*junk(16, BUNDLE), ours])
        self.install(code=TRUST, says="1 of 17 referrers were not opened")
        self.relist(lambda _: [ours | {"size": 5}])
        self.install(code=TRUST)
        self.relist(lambda _: [ours | {"mediaType": INDEX}])
        self.install(code=TRUST)
        self.relist(lambda _: [ours | {"digest": "sha256:../../x"}])
        self.install(code=INTEGRITY)

    def test_info_says_what_was_signed_and_by_whom(self):
        self.attest(*SOURCE, "--records", self.record())
        found = self.info()
        self.assertEqual({name: each["signers"] for name, each in found.items()},
                         {name: [] for name in ("signature", "provenance", "sbom", "tests")})
        self.require("--statement", "tests")
        found = self.info()
        self.assertEqual(found["provenance"]["signers"], [self.fingerprint("release")])
        self.assertEqual(found["provenance"]["predicate"]["runDetails"]["builder"]["id"], SOURCE[5])
        self.assertIn(SOURCE[3], found["provenance"]["says"])
        self.assertIn("EPYC (2026-11-24): cpu-x86-64-v3", found["tests"]["says"])
        self.hang_signed(predicateType=PROVENANCE, predicate={"a": "\x1b[2J"})
        says = [each["says"] for each in self.kiln("info", f"{NAME}@1", "--registry", self.registry)["attestations"]]
        self.assertIn("not as Kiln writes it", says[-1])

    def info(self):
        document = self.kiln("info", f"{NAME}@1", "--registry", self.registry)
        return {each["statement"]: each for each in document["attestations"]}


if __name__ == "__main__":
    main()
