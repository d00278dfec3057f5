# SPDX-License-Identifier: Apache-2.0
"""A server that writes raw bytes: a registry out of a folder, wrong where a test says so."""

import json
import pathlib
import socket
import ssl
import struct
import threading
import time


class Connection:
    """What a behaviour writes to. `body` is what an honest server would send for this path."""

    def __init__(self, sock, server, path, headers, body):
        self.sock = sock
        self.server = server
        self.path = path
        self.headers = headers
        self.body = body

    def send(self, data):
        try:
            self.sock.sendall(data if isinstance(data, bytes) else data.encode())
            return True
        except OSError:
            return False

    def answer(self, status, *headers, body=b"", length=None):
        head = [f"HTTP/1.1 {status} Status", *headers, "Connection: close",
                f"Content-Length: {len(body) if length is None else length}"]
        self.send("\r\n".join(head) + "\r\n\r\n")
        self.send(body)

    def honest(self, *headers):
        if self.body is None:
            return self.answer(404)
        wanted = self.headers.get("range")
        if wanted:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            total = len(self.body)
            return self.answer(206, f"Content-Range: bytes {start}-{total - 1}/{total}", *headers,
                               body=self.body[start:])
        return self.answer(200, *headers, body=self.body)

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def hold(self, seconds=20):
        """Keeps silent until the client goes."""
        self.sock.settimeout(seconds)
        try:
            self.sock.recv(1)
        except OSError:
            pass


class Server:
    """behave(connection) for a path that contains `part`; honest for all others."""

    def __init__(self, root, part="", behave=None, context=None, address="127.0.0.1"):
        self.root = pathlib.Path(root)
        self.part = part
        self.behave = behave
        self.context = context
        self.asked = []
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.listener = socket.create_server((address, 0), family=family, backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def serve(self, sock):
        with sock:
            try:
                if self.context:
                    sock = self.context.wrap_socket(sock, server_side=True)
                request = b""
                while b"\r\n\r\n" not in request:
                    piece = sock.recv(65536)
                    if not piece:
                        return
                    request += piece
            except (OSError, ssl.SSLError):
                return
            lines = request.decode().split("\r\n")
            path = lines[0].split(" ")[1]
            headers = {key.lower(): value for key, _, value in
                       (line.partition(": ") for line in lines[1:] if ": " in line)}
            self.asked.append(path)
            connection = Connection(sock, self, path, headers, self.content(path))
            if self.behave and self.part in path:
                self.behave(connection)
            else:
                connection.honest()
            try:
                if self.context:
                    sock.unwrap()
                sock.close()
            except OSError:
                pass

    def content(self, path):
        """/v2/<name>/{manifests/<tag or digest>,blobs/<digest>,tags/list} as the folder has it."""
        words = path.split("?")[0].strip("/").split("/")
        if len(words) < 4 or words[0] != "v2" or not (self.root / words[1] / "index.json").exists():
            return None
        layout = json.loads((self.root / words[1] / "index.json").read_text())
        tags = {entry["annotations"]["org.opencontainers.image.ref.name"]: entry["digest"]
                for entry in layout["manifests"]}
        if words[2:] == ["tags", "list"]:
            return json.dumps({"name": words[1], "tags": list(tags)}).encode()
        digest = tags.get(words[3], words[3])
        blob = self.root / words[1] / "blobs/sha256" / digest.removeprefix("sha256:")
        return blob.read_bytes() if blob.is_file() else None


def drip(connection, seconds=30):
    """One byte a second, of a whole answer."""
    connection.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(connection.body)}\r\n\r\n")
    for byte in connection.body[:seconds]:
        if not connection.send(bytes([byte])):
            return
        time.sleep(1)
