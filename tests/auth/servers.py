# SPDX-License-Identifier: Apache-2.0
"""A registry that wants to be convinced, and a token server; both note all that they are sent."""

import base64
import http.server
import json
import pathlib
import threading
import urllib.parse


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Request:
    def __init__(self, command, target, headers, body, number):
        split = urllib.parse.urlsplit(target)
        self.command = command
        self.target = target
        self.path = split.path
        self.query = urllib.parse.parse_qs(split.query)
        self.headers = headers
        self.form = urllib.parse.parse_qs(body)
        self.number = number  # from 1, of this server


class Server:
    """Calls answer(request) for each one; see Request."""

    def __init__(self, test, answer, context=None):
        self.requests = []
        self.answer = answer
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            wbufsize = -1  # one packet an answer: no wait for an acknowledgement between two

            def do_GET(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length).decode()
                request = Request(self.command, self.path, self.headers, body,
                                  len(server.requests) + 1)
                server.requests.append(request)
                status, headers, body = server.answer(request)
                self.send_response(status)
                for key, value in headers:
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET
            do_CONNECT = do_GET

            def log_message(self, *arguments):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # a client may hang up: on too many bytes, it should
        if context is not None:
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.scheme = "https" if context is not None else "http"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        test.addCleanup(self.http.server_close)
        test.addCleanup(self.http.shutdown)

    @property
    def host(self):
        return f"127.0.0.1:{self.http.server_port}"

    @property
    def url(self):
        return f"{self.scheme}://{self.host}"

    def authorizations(self):
        return [each.headers.get("Authorization") for each in self.requests]


class Registry(Server):
    """Serves a folder registry under /v2/ to who is `allowed`, and challenges the others."""

    def __init__(self, test, root, allowed=lambda request: True, challenge=(), redirect=None,
                 context=None):
        self.root = pathlib.Path(root)
        self.allowed = allowed
        self.challenge = list(challenge)
        self.redirect = redirect
        super().__init__(test, self.serve, context)

    def serve(self, request):
        if not self.allowed(request):
            return 401, [("WWW-Authenticate", each) for each in self.challenge], b"{}"
        if self.redirect is not None and "/blobs/" in request.path:
            return 307, [("Location", self.redirect + request.path)], b""
        *_, name, kind, last = request.path.split("/")
        folder = self.root / name
        tags = {}
        if (folder / "index.json").exists():
            layout = json.loads((folder / "index.json").read_bytes())
            for entry in layout["manifests"]:
                tags[entry["annotations"]["org.opencontainers.image.ref.name"]] = entry["digest"]
        if kind == "tags":
            return 200, [], json.dumps({"name": name, "tags": list(tags)}).encode()
        digest = tags.get(last, last)
        blob = folder / "blobs/sha256" / digest.removeprefix("sha256:")
        if not blob.is_file():
            return 404, [], b"{}"
        types = {"blobs": "application/octet-stream",
                 "manifests": "application/vnd.oci.image.manifest.v1+json"}
        media_type = types[kind]
        if last in tags:
            media_type = "application/vnd.oci.image.index.v1+json"
        return 200, [("Content-Type", media_type), ("Docker-Content-Digest", digest)], \
            blob.read_bytes()


class TokenServer(Server):
    """Gives a new token to each request that `grants` likes, under the member `key`."""

    def __init__(self, test, grants=lambda request: True, key="token", extra=None):
        self.grants = grants
        self.key = key
        self.extra = extra or {}
        self.tokens = []
        super().__init__(test, self.give)

    def give(self, request):
        if not self.grants(request):
            return 403, [], b'{"errors":[{"code":"DENIED"}]}'
        self.tokens.append(f"SECRET-token-{request.number}")
        return 200, [("Content-Type", "application/json")], \
            json.dumps({self.key: self.tokens[-1]} | self.extra).encode()

    def knows(self, request):
        """Whether a request to the registry carries one of the tokens."""
        return request.headers.get("Authorization") in [f"Bearer {each}" for each in self.tokens]

    def challenge(self, scope="repository:sample:pull", service="tests"):
        return f'Bearer realm="{self.url}/token",service="{service}",scope="{scope}"'
