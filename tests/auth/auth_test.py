#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Registries that want a token or a login, as the real command meets them.

Wants KILN_BIN, the folder of the binaries. Every secret here begins with SECRET: none may be in what
the command prints or leaves in its cache, nor reach a server that it is not meant for.
"""

import base64
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import forge  # noqa: E402
from servers import Registry, Server, TokenServer, basic  # noqa: E402

KILN = pathlib.Path(os.environ["KILN_BIN"]) / "kiln"
OK, NETWORK = 0, 5
LOGIN = basic("user", "SECRET-password")


def entry(user="user", password="SECRET-password"):
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


class AuthTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.root = self.work / "registry"
        self.home = self.work / "home"
        self.environment = {"HOME": str(self.home), "KILN_UNSIGNED": os.environ["KILN_UNSIGNED"], "KILN_CACHE": str(self.work / "cache"),
                            "PATH": f"{self.work}/bin:/usr/bin:/bin"}
        self.package = forge.Package(self.root).publish()

    def write(self, path, text, mode=0o600):
        path = self.work / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def docker_config(self, **content):
        self.write("home/.docker/config.json", json.dumps(content))

    def helper(self, name, script):
        """A credential helper that notes what it is asked, and with which arguments."""
        self.write(f"bin/docker-credential-{name}", "#!/bin/sh\n"
                   f'echo "{name} $* $(cat)" >> {self.work}/helpers\n{script}\n', 0o755)

    def asked_helpers(self):
        path = self.work / "helpers"
        return path.read_text().splitlines() if path.exists() else []

    def forget(self):
        shutil.rmtree(self.work / "cache")

    def install(self, registry, expected=OK, words=(), spec="sample@1"):
        run = subprocess.run([KILN, "install", spec, "--device", "cpu", "--registry", registry],
                             env=self.environment, capture_output=True, text=True, timeout=60)
        output = run.stdout + run.stderr
        self.assertEqual(run.returncode, expected, output)
        for word in words:
            self.assertIn(word, output)
        self.assertNotIn("SECRET", output)
        for secret in (entry()["auth"], LOGIN):
            self.assertNotIn(secret, output)
        for path in (self.work / "cache").rglob("*"):
            if path.is_file():
                self.assertNotIn(b"SECRET", path.read_bytes(), path)
        return output

    def token_registry(self, tokens, **options):
        return Registry(self, self.root, tokens.knows, [tokens.challenge()], **options)

    def password_registry(self, **options):
        return Registry(self, self.root, lambda request: request.headers["Authorization"] == LOGIN,
                        ['Basic realm="tests"'], **options)


class Bearer(AuthTest):
    def test_a_public_registry_gets_a_token_for_nobody_once(self):
        tokens = TokenServer(self)
        registry = self.token_registry(tokens)
        self.install(registry.url)
        [request] = tokens.requests
        self.assertEqual(request.command, "GET")
        self.assertEqual(request.query,
                         {"service": ["tests"], "scope": ["repository:sample:pull"]})
        self.assertIsNone(request.headers["Authorization"])
        self.assertEqual(registry.authorizations(), [None] + ["Bearer SECRET-token-1"] * 4)

    def test_without_a_401_nothing_is_read_or_sent(self):
        self.docker_config(credsStore="keys", auths={"127.0.0.1": entry()})
        self.helper("keys", "exit 1")
        registry = Registry(self, self.root)
        self.docker_config(credsStore="keys", auths={registry.host: entry()})
        self.install(registry.url)
        self.assertEqual(registry.authorizations(), [None] * 4)
        self.assertEqual(self.asked_helpers(), [])

    def test_both_names_of_the_token(self):
        for key in ("token", "access_token"):
            with self.subTest(key):
                self.install(self.token_registry(TokenServer(self, key=key)).url)

    def test_a_login_is_shown_to_the_token_server_and_only_the_token_to_the_registry(self):
        tokens = TokenServer(self, lambda request: request.headers["Authorization"] == LOGIN)
        registry = self.token_registry(tokens)
        self.docker_config(auths={registry.host: entry()})
        self.install(registry.url)
        self.assertEqual(tokens.authorizations(), [LOGIN])
        self.assertEqual(set(registry.authorizations()), {None, "Bearer SECRET-token-1"})

    def test_an_identity_token_is_posted(self):
        def grants(request):
            return request.command == "POST" and request.form == {
                "grant_type": ["refresh_token"], "client_id": ["kiln"], "service": ["tests"],
                "scope": ["repository:sample:pull"], "refresh_token": ["SECRET+/=&refresh"]}

        for kind in ("auths", "helper"):
            with self.subTest(kind):
                tokens = TokenServer(self, grants, key="access_token")
                registry = self.token_registry(tokens)
                if kind == "auths":
                    self.docker_config(auths={registry.host: {
                        "auth": entry("<token>", "")["auth"], "identitytoken": "SECRET+/=&refresh"}})
                else:
                    self.docker_config(credHelpers={registry.host: "idp"})
                    self.helper("idp", """echo '{"ServerURL":"x","Username":"<token>","""
                                """"Secret":"SECRET+/=&refresh"}'""")
                self.install(registry.url)
                self.assertEqual(tokens.authorizations(), [None])

    def test_each_repository_gets_a_token_of_its_own(self):
        forge.Package(self.root, "other").publish()
        tokens = TokenServer(self)

        def allowed(request):
            name = request.path.split("/")[2]
            registry.challenge = [tokens.challenge(f"repository:{name}:pull")]
            return tokens.knows(request)

        registry = Registry(self, self.root, allowed)
        self.install(registry.url)
        self.install(registry.url, spec="other@1")
        self.assertEqual([each.query["scope"] for each in tokens.requests],
                         [["repository:sample:pull"], ["repository:other:pull"]])

    def test_several_scopes_are_asked_for_one_by_one_and_a_missing_one_is_made(self):
        tokens = TokenServer(self)
        for scope, expected in (("a:b:pull c:d:pull", ["a:b:pull", "c:d:pull"]),
                                ("", ["repository:team/sample:pull"])):
            registry = Registry(self, self.root, tokens.knows, [tokens.challenge(scope)])
            self.install(registry.url + "/team")
            self.assertEqual(tokens.requests[-1].query["scope"], expected)

    def test_a_realm_keeps_its_own_query(self):
        tokens = TokenServer(self)
        registry = Registry(self, self.root, tokens.knows,
                            [f'Bearer realm="{tokens.url}/t?account=a%20b",service="x y&z"'])
        self.install(registry.url)
        self.assertEqual(tokens.requests[0].query["account"], ["a b"])
        self.assertEqual(tokens.requests[0].query["service"], ["x y&z"])

    def test_a_token_that_ends_in_the_middle_is_replaced(self):
        tokens = TokenServer(self)
        used = []

        def allowed(request):  # each token opens two doors
            used.append(request.headers["Authorization"])
            return tokens.knows(request) and used.count(used[-1]) <= 2

        registry = Registry(self, self.root, allowed, [tokens.challenge()])
        self.install(registry.url)
        self.assertEqual(len(tokens.requests), 2)

    def test_an_expired_token_is_not_sent(self):
        tokens = TokenServer(self, extra={"expires_in": 1})

        def allowed(request):
            if request.number == 2:
                time.sleep(1.1)
            return tokens.knows(request)

        registry = Registry(self, self.root, allowed, [tokens.challenge()])
        self.install(registry.url)
        self.assertEqual(registry.authorizations()[:4], [
            None, "Bearer SECRET-token-1", None, "Bearer SECRET-token-2"])

    def test_a_registry_that_refuses_its_own_token_is_asked_twice(self):
        tokens = TokenServer(self)
        registry = Registry(self, self.root, lambda request: False, [tokens.challenge()])
        output = self.install(registry.url, NETWORK, [
            "status 401", "without a login", 'the scope "repository:sample:pull"',
            "home/.docker/config.json is not there", f"docker login {registry.host}"])
        self.assertLess(len(output), 1000)
        self.assertEqual(len(registry.requests), 2)
        self.assertEqual(len(tokens.requests), 1)

    def test_a_login_that_is_refused_is_named_by_its_file(self):
        tokens = TokenServer(self, lambda request: False)
        registry = self.token_registry(tokens)
        self.docker_config(auths={registry.host: entry()})
        self.install(registry.url, NETWORK, ["status 403", "with the login of ",
                                             "home/.docker/config.json", "docker login"])

    def test_403_with_a_token_says_who_asked(self):
        tokens = TokenServer(self)
        registry = self.token_registry(tokens)
        serve = registry.answer
        registry.answer = lambda request: (403, [], b"") if "/blobs/" in request.path else serve(
            request)
        self.install(registry.url, NETWORK, ["status 403", "without a login", "the scope"])

    def test_answers_that_are_no_token(self):
        answers = {
            "empty": b"", "html": b"<html>SECRET</html>", "a list": b"[]", "no token": b"{}",
            "a number": b'{"token":1}', "an empty one": b'{"token":""}',
            "a line break": b'{"token":"SECRET\\r\\nX-Evil: 1"}', "spaces": b'{"token":"SECRET a"}',
            "not ASCII": '{"token":"SECRET\u00e9"}'.encode(), "twice": b'{"token":"a","token":"b"}',
            "65 KB": b'{"token":"' + b"S" * 65537 + b'"}', "cut off": b'{"token":"SECRET',
            "deep": b"[" * 100000, "300 kB": b'{"token":"' + b"S" * 300000 + b'"}',
        }
        for name, body in answers.items():
            with self.subTest(name):
                tokens = TokenServer(self)
                tokens.answer = lambda request: (200, [], body)
                registry = self.token_registry(tokens)
                self.install(registry.url, NETWORK, [
                    "the token server", "262144 bytes" if name == "300 kB" else "no token"])
                self.assertEqual(registry.authorizations(), [None])

    def test_challenges_that_cannot_be_answered(self):
        for challenge, word in {
            "Digest realm=x, Negotiate": '"digest", "negotiate"',
            'Bearer realm="x': "quote that does not end",
            "Bearer": "expected a URL",
            'Bearer realm="not a url"': "expected a URL",
            'Bearer realm="http://192.0.2.1/token"': "http://192.0.2.1/token, expected https",
            'Bearer realm="ftp://127.0.0.1/token"': "ftp://127.0.0.1/token, expected https",
            'Bearer realm="file:///etc/passwd"': "file:///etc/passwd, expected https",
            'Bearer realm="https://a:SECRET@192.0.2.1/"': "https://192.0.2.1/, expected https",
        }.items():
            with self.subTest(challenge):
                registry = Registry(self, self.root, lambda request: False, [challenge])
                self.docker_config(auths={registry.host: entry()})
                self.install(registry.url, NETWORK, [word])
                self.assertEqual(len(registry.requests), 1)

    def test_two_headers_and_the_better_scheme(self):
        tokens = TokenServer(self)
        registry = Registry(self, self.root, tokens.knows, ['Basic realm="x"', tokens.challenge()])
        self.install(registry.url)


class Redirects(AuthTest):
    def test_a_token_stays_with_its_server(self):
        store = Registry(self, self.root)
        registry = self.token_registry(TokenServer(self), redirect=store.url)
        self.install(registry.url)
        self.assertEqual(store.authorizations(), [None, None])
        self.assertEqual(len(registry.requests), 5)

    def test_a_password_stays_with_its_server(self):
        store = Registry(self, self.root)
        registry = self.password_registry(redirect=store.url)
        self.docker_config(auths={registry.host: entry(), store.host: entry("user", "SECRET-2")})
        self.install(registry.url)
        self.assertEqual(store.authorizations(), [None, None])

    def test_a_redirect_within_the_server_keeps_it(self):
        registry = self.password_registry()
        registry.redirect = registry.url
        serve = registry.serve

        def moved(request):
            registry.redirect = None if request.path.startswith("/moved") else registry.url + \
                "/moved"
            return serve(request)

        registry.answer = moved
        self.docker_config(auths={registry.host: entry()})
        self.install(registry.url)
        self.assertTrue(any(each.path.startswith("/moved") for each in registry.requests))

    def test_the_401_of_another_server_is_not_answered(self):
        store = Registry(self, self.root, lambda request: False, ['Basic realm="x"'])
        registry = self.password_registry(redirect=store.url)
        self.docker_config(auths={registry.host: entry(), store.host: entry()})
        self.install(registry.url, NETWORK, ["status 401", store.host, "No login is sent"])
        self.assertEqual(store.authorizations(), [None])

    def test_a_token_server_that_sends_elsewhere_gets_no_login_there(self):
        elsewhere = TokenServer(self)
        tokens = Server(self, lambda request: (307, [("Location", elsewhere.url + "/t")], b""))
        registry = Registry(self, self.root, elsewhere.knows, [f'Bearer realm="{tokens.url}/t"'])
        self.docker_config(auths={registry.host: entry()})
        self.install(registry.url)
        self.assertEqual(tokens.authorizations(), [LOGIN])
        self.assertEqual(elsewhere.authorizations(), [None])

    def test_a_posted_identity_token_is_not_sent_on(self):
        elsewhere = TokenServer(self)
        tokens = Server(self, lambda request: (307, [("Location", elsewhere.url + "/t")], b""))
        registry = Registry(self, self.root, elsewhere.knows, [f'Bearer realm="{tokens.url}/t"'])
        self.docker_config(auths={registry.host: {"identitytoken": "SECRET-refresh"}})
        self.install(registry.url, NETWORK, ["redirects a login"])
        self.assertEqual(elsewhere.requests, [])

    def test_https_is_not_left_for_a_token(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.work / "key.pem",
                        "-out", self.work / "cert.pem", "-days", "2", "-subj", "/CN=127.0.0.1",
                        "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.work / "cert.pem", self.work / "key.pem")
        self.environment["SSL_CERT_FILE"] = str(self.work / "cert.pem")
        tokens = TokenServer(self)
        registry = self.token_registry(tokens, context=context)
        self.docker_config(auths={registry.host: entry()})
        self.install(registry.url, NETWORK, [f"{tokens.url}/token, expected https"])
        self.assertEqual(tokens.requests, [])
        registry.allowed = lambda request: request.headers["Authorization"] == LOGIN
        registry.challenge = ["Basic realm=x"]
        self.install(registry.url)


class Logins(AuthTest):
    def refused(self, registry, words=()):
        self.install(registry.url, NETWORK, ["wants a user and a password", *words])
        self.assertEqual(set(registry.authorizations()), {None})

    def test_basic_from_each_file(self):
        registry = self.password_registry()
        content = json.dumps({"auths": {registry.host: entry()}})
        places = {"HOME": "home/.docker/config.json", "DOCKER_CONFIG": "d/config.json",
                  "REGISTRY_AUTH_FILE": "my/auth.json",
                  "XDG_RUNTIME_DIR": "run/containers/auth.json"}
        values = {"DOCKER_CONFIG": "d", "REGISTRY_AUTH_FILE": "my/auth.json",
                  "XDG_RUNTIME_DIR": "run"}
        for variable, path in places.items():
            with self.subTest(variable):
                self.write(path, content)
                self.environment.pop("REGISTRY_AUTH_FILE", None)
                if variable in values:
                    self.environment[variable] = str(self.work / values[variable])
                self.install(registry.url)
                self.assertEqual(registry.authorizations()[-1], LOGIN)
                (self.work / path).unlink()
                self.forget()
        self.install(registry.url, NETWORK, [
            "d/config.json is not there", "run/containers/auth.json is not there"])

    def test_without_a_home_there_is_no_login(self):
        del self.environment["HOME"]
        self.refused(self.password_registry(), ["no file of logins is set"])

    def test_an_address_as_key_and_not_the_host_without_its_port(self):
        registry = self.password_registry()
        self.docker_config(auths={"127.0.0.1": entry(), "https://127.0.0.1": entry(),
                                  registry.host + "0": entry(), "other.example": entry()})
        self.refused(registry, ["config.json has none"])
        self.docker_config(auths={f"https://{registry.host}/v1/": entry()})
        self.install(registry.url)

    def test_podman_the_longest_path_wins(self):
        registry = self.password_registry()
        wrong = entry("user", "SECRET-wrong")
        self.environment["REGISTRY_AUTH_FILE"] = str(self.work / "auth.json")
        self.write("auth.json", json.dumps({"auths": {
            registry.host: wrong, registry.host + "/a": wrong, registry.host + "/a/sample": entry(),
            registry.host + "/a/sam": wrong, registry.host + "/a/sample/more": wrong}}))
        self.install(registry.url + "/a")
        self.assertEqual(set(registry.authorizations()), {None, LOGIN})
        self.write("auth.json", json.dumps({"auths": {
            registry.host: wrong, registry.host + "/b": entry()}}))
        self.install(registry.url + "/b")

    def test_docker_before_podman(self):
        registry = self.password_registry()
        self.environment["XDG_RUNTIME_DIR"] = str(self.work)
        self.write("containers/auth.json", json.dumps(
            {"auths": {registry.host: entry("user", "SECRET-wrong")}}))
        self.docker_config(auths={registry.host: entry()})
        self.install(registry.url)

    def test_a_helper_of_the_host_before_the_store_before_the_file(self):
        registry = self.password_registry()
        answer = """echo '{"ServerURL":"x","Username":"user","Secret":"SECRET-%s"}'"""
        content = {"credHelpers": {registry.host: "mine", "other": "theirs"}, "credsStore": "store",
                   "auths": {registry.host: entry()}}
        self.docker_config(**content)
        self.helper("mine", answer % "password")
        self.helper("store", answer % "wrong")
        self.helper("theirs", answer % "wrong")
        self.install(registry.url)
        self.assertEqual(self.asked_helpers(), [f"mine get {registry.host}"])

        self.forget()
        missing = "echo 'credentials not found in native keychain'; exit 1"
        self.helper("mine", missing)
        self.helper("store", missing)
        self.install(registry.url)
        self.assertEqual(self.asked_helpers()[1:], [f"mine get {registry.host}",
                                                    f"store get {registry.host}"])
        self.docker_config(credsStore="store", auths={registry.host: {}})
        self.refused(self.password_registry(), ['"docker-credential-store" has none'])

    def test_broken_helpers_are_named_and_stop_no_public_read(self):
        self.helper("loud", "echo SECRET-out; echo SECRET-err >&2; exit 3")
        self.helper("garbage", "echo 'SECRET garbage'")
        self.helper("empty", "true")
        self.helper("huge", "head -c 100000 /dev/zero")
        self.write("bin/docker-credential-text", "not executable", 0o644)
        for name, word in {"loud": "failed with exit status 3", "garbage": "gave no JSON",
                           "empty": "gave no JSON", "huge": "more than 65536 bytes",
                           "absent": "is not on PATH", "text": "could not be started",
                           "../bin/loud": "is not the name of a helper", "a;id": "is not the name",
                           "": "config.json has none"}.items():
            with self.subTest(name):
                self.docker_config(credsStore=name)
                self.refused(self.password_registry(), [word])
                if name in ("loud", "absent"):
                    self.install(self.token_registry(TokenServer(self)).url)

    def test_broken_files_are_named_and_not_shown(self):
        registry = self.password_registry()
        path = self.work / "home/.docker/config.json"
        good = json.dumps({"auths": {registry.host: entry()}})
        for text, word in {
            "": "is not a JSON object", "SECRET": "is not a JSON object", "[]": "is not a JSON",
            '{"auths": SECRET}': "is not a JSON", good + "x": "is not a JSON object",
            " " * (1 << 20) + good: "more than 1048576 bytes", "{}": "config.json has none",
            '{"auths": []}': "has none", '{"auths": {"%s": "SECRET"}}' % registry.host: "has none",
            '{"auths": {"%s": {"auth": 7}}}' % registry.host: "has none",
            '{"auths": {"%s": {"auth": "U0VDUkVU"}}}' % registry.host: "not base64 of user:password",
            '{"auths": {"%s": {"auth": "SECRET!!"}}}' % registry.host: "not base64 of user:password",
        }.items():
            with self.subTest(text[:40]):
                self.write(path, text)
                self.refused(registry, [word])
        path.unlink()
        path.mkdir()
        self.refused(registry, ["Is a directory"])
        path.rmdir()
        os.mkfifo(path)
        self.refused(registry, ["a pipe or a device"])

    def test_docker_hub_has_other_names(self):
        proxy = Server(self, lambda request: (407, [], b""))
        self.environment["HTTPS_PROXY"] = proxy.url
        for host in ("docker.io", "index.docker.io", "registry-1.docker.io"):
            self.install(f"https://{host}/acme", NETWORK)
            self.assertEqual(proxy.requests[-1].target, "registry-1.docker.io:443")


if __name__ == "__main__":
    unittest.main()
