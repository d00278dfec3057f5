# SPDX-License-Identifier: Apache-2.0
"""A terminal of a test: runs the command on one, and knows what it then shows. And a registry that is slow."""

import fcntl
import http.server
import json
import os
import pty
import re
import signal
import struct
import termios
import threading
import time

# A script's background job ignores SIGINT, and what it starts would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Screen:
    """The part of a terminal that Kiln uses: text that wraps, CR, LF, cursor up, erase to the end, colours."""

    def __init__(self, columns):
        self.columns = columns
        self.rows = [""]
        self.wrapped = set()  # rows that the next one goes on
        self.row = self.column = 0
        self.colours = []  # what was said of them, in order
        self.rest = ""

    def feed(self, text):
        text, self.rest = self.rest + text, ""
        for match in re.finditer(r"\x1b\[([0-9;]*)([A-Za-z])|\x1b\[?[0-9;]*$|(.)", text, re.S):
            code, kind, char = match[1], match[2], match[3]
            if kind == "m":
                self.colours.append(code)
            elif kind == "K":
                self.rows[self.row] = self.rows[self.row][:self.column]
                self.wrapped.discard(self.row)
            elif kind == "A":
                self.row = max(0, self.row - int(code or 1))
            elif kind:
                raise AssertionError(f"a control sequence that is not known: {match[0]!r}")
            elif char is None:
                self.rest = match[0]
            else:
                self.put(char)

    def put(self, char):
        if char == "\r":
            self.column = 0
            return
        if char != "\n" and self.column == self.columns:
            self.column = 0
            self.wrapped.add(self.row)
            char = "\n" + char
        for each in char:
            if each == "\n":
                self.row += 1
                self.rows += [""] * (self.row + 1 - len(self.rows))
            else:
                row = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = row[:self.column] + each + row[self.column + 1:]
                self.column += 1

    def lines(self):
        return [row for row in self.rows if row]

    def text(self):
        """What was printed: a line that the width cut is whole again."""
        return "".join(row + ("" if at in self.wrapped else "\n") for at, row in enumerate(self.rows)).split("\n")

    def matching(self, pattern):
        return [row for row in self.rows if re.search(pattern, row)]


def at_a_terminal(program, *words, environment, columns=80, interrupt_at=None, watch=lambda screen: None):
    """Exit code, raw output and screen of a program with all streams on a terminal. Ctrl-C once a text is shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        modes = termios.tcgetattr(2)
        modes[3] |= termios.NOFLSH  # else Ctrl-C drops what was written and not read yet, here a part of a line
        termios.tcsetattr(2, termios.TCSANOW, modes)
        try:
            os.execve(program, [os.path.basename(program), *words], environment)
        finally:
            os._exit(127)  # it could not be started: the test goes on in the other process alone
    shown = b""
    screen = Screen(columns)
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # EIO: the other side is closed
            piece = b""
        if not piece:
            break
        shown += piece
        if interrupt_at and interrupt_at in shown:
            interrupt_at = None
            os.write(terminal, b"\x03")
        screen.feed(piece.decode(errors="replace"))
        watch(screen)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown, screen


def slow_registry(test, folder, pause, refuse="", answer=0):
    """URL of the pull side of an OCI registry over a folder. A layer comes in ten pieces, each after `pause` s; of the
    package `refuse` it does not come at all, after five such pauses. Each answer begins after `answer` s."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            time.sleep(answer)
            _, _, package, kind, name = self.path.split("/")
            layout = folder / package
            if kind == "manifests" and not name.startswith("sha256:"):
                tags = json.loads((layout / "index.json").read_bytes())["manifests"]
                name = next(each["digest"] for each in tags
                            if each["annotations"]["org.opencontainers.image.ref.name"] == name)
            body = (layout / "blobs/sha256" / name.removeprefix("sha256:")).read_bytes()
            document = body.startswith(b"{")
            if package == refuse and not document:
                time.sleep(5 * pause)
                self.send_error(404)
                return
            self.send_response(200)
            of = json.loads(body)["mediaType"] if kind == "manifests" else "application/octet-stream"
            self.send_header("Content-Type", of)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            size = len(body) if document else len(body) // 10 + 1
            try:
                for at in range(0, len(body), size):
                    time.sleep(0 if document else pause)
                    self.wfile.write(body[at:at + size])
            except OSError:
                pass  # the client went

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    test.addCleanup(server.server_close)
    test.addCleanup(server.shutdown)
    return f"http://127.0.0.1:{server.server_port}"
