# SPDX-License-Identifier: Apache-2.0
"""A registry with the manners of the large ones. Amazon's and Harbor refuse to move a tag, GitLab's and many others
send to a store whose addresses are signed for GET alone, lists come in pages, and what is empty is null, as Go
writes it."""

import http.server
import json
import threading
import urllib.parse

from oci_server import OciServer, digest_of


class Store:
    """Behind the registry: each address is signed for one method, GET."""

    def __init__(self, test, registry):
        self.asked = []  # (method, status)
        self.refuses = False  # also what is signed: as after the end of its minutes
        store = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                path = urllib.parse.urlsplit(self.path)
                body = registry.blobs.get(path.path.lstrip("/"))
                signed = path.query == "signed-for=GET" and self.command == "GET" and not store.refuses
                status = 403 if not signed else 404 if body is None else 200
                content = body if status == 200 else b"<Error><Code>SignatureDoesNotMatch</Code></Error>"
                asked = self.headers["Range"]
                if status == 200 and asked:
                    first = int(asked.removeprefix("bytes=").removesuffix("-"))
                    status, content = 206, body[first:]
                store.asked.append((self.command, status))
                self.send_response(status)
                if status == 206:
                    self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None
        self.host = f"127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        test.addCleanup(server.server_close)
        test.addCleanup(server.shutdown)


class ManneredServer(OciServer):
    """`immutable(tag)`: whether that tag stays. `page`: referrers an answer."""

    def __init__(self, test, immutable=lambda tag: False, page=1, **how):
        self.immutable, self.page = immutable, page
        super().__init__(test, referrers=True, **how)
        self.store = Store(test, self)

    def serve(self, request):
        path = request.path
        if path.endswith("/tags/list"):
            name = path.removeprefix("/v2/").removesuffix("/tags/list")
            return 200, {}, json.dumps({"name": name, "tags": list(self.tags(name)) or None}).encode()
        if path == "/v2/_catalog" and not self.documents:
            return 200, {}, b'{"repositories":null}'
        if request.method in ("GET", "HEAD") and "/blobs/sha256:" in path:
            digest = path.rsplit("/", 1)[1]
            if digest not in self.blobs:
                return 404, {}, b'{"errors":[{"code":"BLOB_UNKNOWN"}]}'
            return 307, {"Location": f"http://{self.store.host}/{digest}?signed-for=GET"}, b""
        reference = path.rsplit("/", 1)[1]
        name = path.removeprefix("/v2/").removesuffix(f"/manifests/{reference}")
        if request.is_a("PUT", "/manifests/") and not reference.startswith("sha256:") and self.immutable(reference):
            before = self.documents.get((name, reference))
            if before and digest_of(before[1]) != digest_of(request.body):
                return 400, {}, json.dumps({"errors": [{"code": "TAG_INVALID", "message": f"The image tag '{reference}' already "
                                                        f"exists and cannot be overwritten because the tag is immutable."}]}).encode()
        if "/referrers/" in path:
            return self.page_of(request, super().serve(request))
        return super().serve(request)

    def page_of(self, request, answer):
        status, headers, body = answer
        document = json.loads(body)
        at = int(request.query.get("at", ["0"])[0])
        listed = [each | {"annotations": None} for each in document["manifests"]]
        if at + self.page < len(listed):
            headers["Link"] = f'<{request.path}?at={at + self.page}>; rel="next"'
        document["manifests"] = listed[at:at + self.page] or None
        document["annotations"] = None
        return status, headers, json.dumps(document).encode()
