# SPDX-License-Identifier: Apache-2.0
"""A registry in memory that takes uploads, and may be told to do so wrongly."""

import hashlib
import http.server
import json
import re
import socket
import struct
import threading
import urllib.parse


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Request:
    def __init__(self, number, handler, body):
        split = urllib.parse.urlsplit(handler.path)
        self.number = number  # from 1, of this server
        self.method = handler.command
        self.path = split.path
        self.query = urllib.parse.parse_qs(split.query)
        self.headers = handler.headers
        self.body = body

    def __str__(self):
        return f"{self.method} {self.path}"

    def is_a(self, method, part):
        return self.method == method and part in self.path


class OciServer:
    """`referrers`: whether it knows that request of the API. `meddle(request, serve)` gives (status, headers, body), or None to hang up; serve() is honest. Where
    `cuts(method, path)` holds, it hangs up on the first bytes of the body."""

    def __init__(self, test, meddle=lambda request, serve: serve(), context=None, cuts=lambda *_: False,
                 referrers=False):
        self.referrers = referrers
        self.requests = []
        self.blobs = {}
        self.documents = {}  # by repository and reference
        self.uploads = set()
        self.meddle = meddle
        self.lock = threading.Lock()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet an answer: no wait for an acknowledgement between two

            def do_GET(self):
                if cuts(self.command, self.path):
                    self.rfile.read(1)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()  # reset: it goes on to write
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                with server.lock:
                    request = Request(len(server.requests) + 1, self, body)
                    server.requests.append(request)
                    answer = server.meddle(request, lambda: server.serve(request))
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, content = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_HEAD = do_POST = do_PUT = do_GET

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # a client may hang up
        if context is not None:
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.host = f"127.0.0.1:{self.http.server_port}"
        self.url = f"{'https' if context else 'http'}://{self.host}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        test.addCleanup(self.http.server_close)
        test.addCleanup(self.http.shutdown)

    def sent(self):
        """What changes something: the uploads and the tags."""
        return [str(each) for each in self.requests if each.method in ("POST", "PUT")]

    def tags(self, repository):
        return {reference: digest_of(body) for (name, reference), (_, body) in self.documents.items()
                if name == repository and not reference.startswith("sha256:")}

    def serve(self, request):
        if request.path == "/v2/":
            return 200, {"Content-Type": "application/json"}, b"{}"
        if self.referrers and (asked := re.fullmatch(r"/v2/(.+)/referrers/([^/]*)", request.path)):
            return self.list_referrers(*asked.groups())
        if request.path == "/v2/_catalog":
            return self.catalog(request)
        listed = re.fullmatch(r"/v2/(.+)/tags/list", request.path)
        if listed and self.tags(listed[1]):
            return 200, {}, json.dumps({"name": listed[1], "tags": list(self.tags(listed[1]))}).encode()
        found = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/(uploads/)?([^/]*)", request.path)
        if found is None:
            return 404, {}, b"{}"
        name, kind, uploads, last = found.groups()
        if uploads:
            return self.upload(request, name, last)
        if request.method == "PUT":
            return self.put_document(request, name, last)
        if kind == "blobs":
            media_type, body = "application/octet-stream", self.blobs.get(last)
        else:
            media_type, body = self.documents.get((name, last), ("", None))
        if body is None:
            return 404, {}, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}'
        return 200, {"Content-Type": media_type, "Content-Length": str(len(body)),
                     "Docker-Content-Digest": digest_of(body)}, body

    def list_referrers(self, name, subject):
        listed = [{"mediaType": media_type, "digest": reference, "size": len(body),
                   "artifactType": json.loads(body).get("artifactType", "")}
                  for (repository, reference), (media_type, body) in sorted(self.documents.items())
                  if repository == name and reference == digest_of(body)
                  and json.loads(body).get("subject", {}).get("digest") == subject]
        media_type = "application/vnd.oci.image.index.v1+json"
        return 200, {"Content-Type": media_type}, json.dumps(
            {"schemaVersion": 2, "mediaType": media_type, "manifests": listed}).encode()

    def catalog(self, request, page=2):
        """The repositories, `page` of them an answer, as the distribution specification pages them."""
        names = sorted({name for name, _ in self.documents})
        names = [name for name in names if name > request.query.get("last", [""])[0]]
        more = {"Link": f'</v2/_catalog?n={page}&last={names[page - 1]}>; rel="next"'} if len(names) > page else {}
        return 200, more, json.dumps({"repositories": names[:page]}).encode()

    def upload(self, request, name, last):
        if request.method == "POST":
            number = f"upload-{request.number}"
            self.uploads.add(number)
            return 202, {"Location": f"/v2/{name}/blobs/uploads/{number}?state=a%2Fb"}, b""
        if last not in self.uploads or request.query["state"] != ["a/b"]:
            return 404, {}, b'{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN"}]}'
        self.uploads.remove(last)
        return self.keep(request)

    def keep(self, request):
        [digest] = request.query["digest"]
        if digest_of(request.body) != digest:
            return 400, {}, b'{"errors":[{"code":"DIGEST_INVALID"}]}'
        self.blobs[digest] = request.body
        return 201, {}, b""

    def put_document(self, request, name, reference):
        document = json.loads(request.body)
        parts = document.get("layers", []) + [document[key] for key in ("config",) if key in document]
        lacks = [part["digest"] for part in parts if part["digest"] not in self.blobs]
        lacks += [part["digest"] for part in document.get("manifests", [])
                  if (name, part["digest"]) not in self.documents]
        if lacks:
            return 400, {}, b'{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN"}]}'
        kept = (request.headers["Content-Type"], request.body)
        self.documents[name, reference] = self.documents[name, digest_of(request.body)] = kept
        return 201, {}, b""
