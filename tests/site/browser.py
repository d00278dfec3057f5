# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through its own pipe: no driver and no web socket."""

import base64
import json
import os
import shutil
import subprocess
import tempfile

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find():
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Browser:
    """One page. `requests` has the URL of all that was asked for, `errors` what the console complained of."""

    def __init__(self, program):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        self._profile = tempfile.TemporaryDirectory()
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
                   f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe", "about:blank"]

        def pipes():  # Chromium reads descriptor 3 and writes 4
            there, back = os.dup(to_browser), os.dup(from_browser)
            os.dup2(there, 3)
            os.dup2(back, 4)

        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL, preexec_fn=pipes, close_fds=False)
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._last, self._session = b"", 0, None
        self.requests, self.errors = [], []
        self._seen = set()
        target = next(each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        os.close(self._write)  # ends it
        self._process.wait(30)
        os.close(self._read)
        self._profile.cleanup()

    def _message(self):
        while b"\0" not in self._buffer:
            piece = os.read(self._read, 1 << 20)
            if not piece:
                raise EOFError("Chromium ended")
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        method, what = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(what["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.errors.append(what["entry"]["text"])
        if method:
            self._seen.add(method)
        return message

    def call(self, method, **params):
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def open(self, url):
        self._seen.discard("Page.loadEventFired")
        failed = self.call("Page.navigate", url=url).get("errorText")
        if failed:
            raise RuntimeError(f"{url}: {failed}")
        while "Page.loadEventFired" not in self._seen:
            self._message()

    def run(self, script):
        """What an expression, or its promise, becomes."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def view(self, width, height, dark=False, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1,
                  mobile=phone)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def press(self, key, text="", modifiers=0):
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        code = codes.get(key, ord(key[0]))
        if key == "Enter":
            text = "\r"
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", key=key, text=text,
                  windowsVirtualKeyCode=code, modifiers=modifiers)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code, modifiers=modifiers)

    def screenshot(self, path, top=0, height=None):
        params = {}
        if height:
            width = self.run("innerWidth")
            params = {"clip": {"x": 0, "y": top, "width": width, "height": height, "scale": 1},
                      "captureBeyondViewport": True}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **params)["data"]))
