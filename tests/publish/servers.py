# SPDX-License-Identifier: Apache-2.0
"""Real servers on loopback, and a reader that shares no code with Kiln."""

import hashlib
import http.client
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def get(url):
    """The body, or None for a 404."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": f"{INDEX}, {MANIFEST}"})) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def read_described(base, kind, descriptor):
    body = get(f"{base}/{kind}/{descriptor['digest']}")
    if body is None or len(body) != descriptor["size"] or digest_of(body) != descriptor["digest"]:
        raise AssertionError(f"{base} does not give {kind} {descriptor['digest']}")
    return body


def read_wholly(url, name, reference=None):
    """Follows everything that a version names, and hashes it. Index digest by version; with a
    reference: that index, parsed. AssertionError if something is not there or is other bytes.
    LookupError if a tag is listed and not there: docker-registry 2.8.2 lists a tag some milliseconds
    before it answers to it, and until then there is no such version."""
    host, _, prefix = url.removeprefix("http://").partition("/")
    base = f"http://{host}/v2/{prefix}/{name}"
    if reference is None:
        listed = get(f"{base}/tags/list")
        tags = json.loads(listed)["tags"] or [] if listed else []
        return {tag: digest_of(read_wholly(url, name, tag)["bytes"]) for tag in tags if re.fullmatch("[0-9]+", tag)}
    data = get(f"{base}/manifests/{reference}")
    if data is None:
        raise LookupError(f"{base} does not give {reference}")
    index = json.loads(data)
    for descriptor in index["manifests"]:
        manifest = json.loads(read_described(base, "manifests", descriptor))
        for blob in [manifest["config"], *manifest["layers"]]:
            read_described(base, "blobs", blob)
    return index | {"bytes": data}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A process that is ready when /v2/ answers; a port that was taken meanwhile is tried anew."""

    def start(self, configure, log):
        for _ in range(5):
            port = free_port()
            self.url = f"http://127.0.0.1:{port}"
            with open(log, "wb") as output:
                self.process = subprocess.Popen(configure(port), stdout=output, stderr=output)
            for _ in range(100):
                try:
                    if get(self.url + "/v2/") is not None:
                        return
                except OSError:
                    time.sleep(0.05)
                if self.process.poll() is not None:
                    break
            self.stop()
        raise RuntimeError(f"{configure(0)[0]} does not start: {log.read_text()}")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()


class OciRegistry(Server):
    def __init__(self, folder):
        folder.mkdir()

        def configure(port):
            (folder / "config.yml").write_text(json.dumps({  # JSON is YAML
                "version": 0.1, "log": {"level": "error", "accesslog": {"disabled": True}},
                "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
                "http": {"addr": f"127.0.0.1:{port}", "secret": "of one process"}}))
            return ["docker-registry", "serve", str(folder / "config.yml")]

        self.start(configure, folder / "log")

    def tags(self, url, name):
        host, _, prefix = url.removeprefix("http://").partition("/")
        listed = get(f"http://{host}/v2/{prefix}/{name}/tags/list")
        return sorted(json.loads(listed)["tags"]) if listed else []

    def copy(self, layout, tag, url, name):
        subprocess.run(["skopeo", "--insecure-policy", "copy", "-q", "--all", "--preserve-digests",
                        "--dest-tls-verify=false", f"oci:{layout}:{tag}",
                        f"docker://{url.removeprefix('http://')}/{name}:{tag}"], check=True)


class Nginx(Server):
    """Serves the tree of an export with the configuration that lies in it."""

    def __init__(self, tree, work):
        # Where the master is root, its workers are another user else, to whom a umask may close the tree.
        user = "" if os.geteuid() else "user root root;\n"

        def configure(port):
            served = (tree / "nginx.conf").read_text().replace("127.0.0.1:8080", f"127.0.0.1:{port}")
            (work / "served.conf").write_text(served)
            paths = "".join(f"{part}_temp_path {work}/{part};\n"
                            for part in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
            (work / "nginx.conf").write_text(
                f"{user}daemon off;\npid {work}/pid;\nevents {{}}\n"
                f"http {{\naccess_log off;\n{paths}include {work}/served.conf;\n}}\n")
            return [shutil.which("nginx") or "/usr/sbin/nginx", "-e", f"{work}/nginx.log", "-c", f"{work}/nginx.conf"]

        self.start(configure, work / "nginx.out")


class Gate:
    """A registry's front door on a port of its own. It counts the requests that come, and calls `trip`
    at the given one, a number or "PUT <last word of the path>": before the registry hears of it or, with
    `heard`, before the client has its answer. With `halved` the registry hears the first half of its body, and
    then nothing more."""

    def __init__(self, behind, trip=None, at=0, heard=False, halved=False):
        self.requests = 0
        self.lock = threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(handler):
                with self.lock:
                    self.requests += 1
                    tripped = at in (self.requests, f"{handler.command} {handler.path.rsplit('/', 1)[-1]}")
                if tripped and halved:
                    return handler.forward_half()
                if tripped and not heard:
                    trip()
                handler.forward(tripped and heard)
                return None

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = do_HEAD

            def forward_half(handler):
                length = int(handler.headers["Content-Length"] or 0)
                half = handler.rfile.read(length // 2)
                trip()
                connection = http.client.HTTPConnection(behind.removeprefix("http://"))
                connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
                for name, value in handler.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(half)
                connection.close()
                handler.close_connection = True

            def forward(handler, trips):
                body = handler.read_body()
                connection = http.client.HTTPConnection(behind.removeprefix("http://"))
                # Each header as it came, the client's Host too: the registry names upload addresses by it.
                connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
                for name, value in handler.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                content = answer.read()
                connection.close()
                if trips:
                    trip()
                handler.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                        handler.send_header(name, value)
                handler.send_header("Content-Length", answer.headers["Content-Length"] or str(len(content)))
                handler.end_headers()
                handler.wfile.write(content)

            def read_body(handler):
                if handler.headers["Transfer-Encoding"] != "chunked":
                    return handler.rfile.read(int(handler.headers["Content-Length"] or 0))
                body = b""
                while size := int(handler.rfile.readline(), 16):
                    body += handler.rfile.read(size)
                    handler.rfile.readline()
                handler.rfile.readline()
                del handler.headers["Transfer-Encoding"]
                handler.headers["Content-Length"] = str(len(body))
                return body

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # a client that was killed
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
