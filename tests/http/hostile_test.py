#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything that an HTTP server may do wrong, as the real command meets it: real bytes, the exit
code, what the text names, and that nothing is left: no unpacked file, no ref, nothing outside the
cache. Each row is a server of its own. Wants KILN_BIN and openssl.
"""

import concurrent.futures
import email.utils
import gzip
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import forge  # noqa: E402
from misbehave import Server, drip  # noqa: E402

KILN = pathlib.Path(os.environ["KILN_BIN"]) / "kiln"
OK, USAGE, NOT_FOUND, NETWORK, INTEGRITY = 0, 2, 4, 5, 6
TAG, MANIFEST, BLOB, TAGS = "/manifests/1", "/manifests/sha256", "/blobs/", "/tags/list"
QUICK = {"tries": 2, "backoff_ms": 20, "connect_seconds": 2, "stall_seconds": 1,
         "deadline_seconds": 5}
PASSWORD = "hunter2"  # of whoever is asked; no text may have it
ROWS = []


def row(name, part, code, text, *, env=None, url=None, tls=None, address="127.0.0.1", package=None,
        network=None, requests=None, slower=0.0):
    """Registers a behaviour. `requests`: how often the part is asked for; `slower`: takes at least
    so many seconds; url: {port} is the server's."""

    def add(behave):
        ROWS.append((name, part, behave, code, text, env or {}, url, tls, address, package,
                     network or {}, requests, slower))
        return behave

    return add


def has_ipv6():
    """Whether this system has an address of it, as many containers do not."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        return True
    except OSError:
        return False


def redirect(name, to, code, text, **options):
    row(name, BLOB, code, text, **options)(lambda c: c.answer(302, f"Location: {to}"))


# Redirects.
redirect("redirect to a file", "file:///etc/passwd", NETWORK, "redirects to file:///etc/passwd")
redirect("redirect to ftp", "ftp://127.0.0.1/x", NETWORK, "redirects to ftp://127.0.0.1/x")
redirect("redirect to gopher", "gopher://127.0.0.1/x", NETWORK, "redirects to gopher://")
redirect("redirect to http elsewhere", "http://192.0.2.1/x", NETWORK, "http://192.0.2.1/x")
redirect("redirect to what is not a URL", "http://exa mple:99999999/", NETWORK, "which is not a URL")
redirect("redirect in a circle", "/v2/sample/blobs/x", NETWORK, "more than 5 redirects",
         requests=6)
row("redirect without a Location", BLOB, NETWORK, "without a Location")(lambda c: c.answer(302))
row("redirect with a page that never ends", BLOB, NETWORK, "redirects to ftp://")(
    lambda c: c.answer(302, "Location: ftp://x/", body=b"x" * 3_000_000))
row("status 304", BLOB, NETWORK, "status 304")(lambda c: c.answer(304))


@row("eleven hops", BLOB, NETWORK, "more than 5 redirects")
def hops(c):
    hop = int(c.path.rpartition("hop=")[2]) if "hop=" in c.path else 0
    if hop == 11:
        return c.honest()
    return c.answer(307, f"Location: {c.path.partition('?')[0]}?hop={hop + 1}")


@row("four hops are fine", BLOB, OK, "")
def few_hops(c):
    hop = int(c.path.rpartition("hop=")[2]) if "hop=" in c.path else 0
    if hop == 4:
        return c.honest()
    return c.answer(307, f"Location: {c.path.partition('?')[0]}?hop={hop + 1}")


# Bodies.
row("short body", BLOB, NETWORK, "gave up after 2 tries")(
    lambda c: c.answer(200, body=b"", length=len(c.body)))
row("a short body that says so", BLOB, INTEGRITY, "bytes of the", requests=1)(
    lambda c: c.answer(200, body=c.body[:-1]))
row("one byte more than promised", BLOB, INTEGRITY, "more than the", requests=1)(
    lambda c: c.answer(200, body=c.body + b"x"))
row("a warning for its users", BLOB, OK, "says: it moves, soon\n")(
    lambda c: c.honest('Warning: 110 - "stale", 299 - "it moves, soon"'))
row("a warning that would paint", "/v2/", OK, "says: \\x1b[31mred\n")(lambda c: c.honest('Warning: 299 - "\x1b[31mred"'))

row("longer than its Content-Length", BLOB, OK, "")(
    lambda c: c.answer(200, body=c.body + b"x" * 1000, length=len(c.body)))
row("endless body", BLOB, INTEGRITY, "more than the")(
    lambda c: c.answer(200, body=c.body + b"x" * 50_000_000))
row("empty body", BLOB, INTEGRITY, "0 bytes of the")(lambda c: c.answer(200))
row("another digest", BLOB, INTEGRITY, "digest is", requests=1)(
    lambda c: c.answer(200, body=bytes(len(c.body))))
row("no Content-Length", BLOB, OK, "")(
    lambda c: c.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + c.body))
row("no Content-Length, and cut", BLOB, NETWORK, "the connection ended after 10 of")(
    lambda c: c.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + c.body[:10]))
row("HTTP/1.0", BLOB, OK, "")(lambda c: c.send(b"HTTP/1.0 200 OK\r\n\r\n" + c.body))
row("HTTP/0.9", BLOB, NETWORK, "HTTP/0.9")(lambda c: c.send(c.body))
row("chunked", BLOB, OK, "")(
    lambda c: c.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                     + b"%x\r\n" % len(c.body) + c.body + b"\r\n0\r\n\r\n"))
row("chunked, and cut", BLOB, NETWORK, "gave up after")(
    lambda c: c.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\nabc"))
row("chunked, with a size that is none", BLOB, NETWORK, "gave up after")(
    lambda c: c.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc"))
row("a negative Content-Length", BLOB, NETWORK, "Content-Length")(
    lambda c: c.send(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"))
row("gzip", BLOB, INTEGRITY, 'Content-Encoding "gzip"')(
    lambda c: c.answer(200, "Content-Encoding: gzip", body=gzip.compress(c.body)))
row("gzip of an index", TAG, INTEGRITY, 'Content-Encoding "gzip"')(
    lambda c: c.answer(200, "Content-Encoding: gzip", body=gzip.compress(c.body)))
row("hangs up without a word", BLOB, NETWORK, "Empty reply", requests=2)(lambda c: None)
row("reset at once", BLOB, NETWORK, "gave up after 2 tries", requests=2)(lambda c: c.reset())
row("an index without end", TAG, INTEGRITY, "more than 4194304 bytes")(
    lambda c: c.answer(200, body=b" " * 6_000_000))
row("a manifest of other bytes", MANIFEST, INTEGRITY, "digest is")(
    lambda c: c.answer(200, body=bytes(len(c.body))))
row("a list of tags that is no JSON", TAGS, INTEGRITY, "tags/list", package="sample@7")(
    lambda c: c.answer(200, body=b"<html>"))


@row("reset in the middle, then a server that knows ranges", BLOB, OK, "again in", requests=3)
def reset_once(c):
    if "range" in c.headers or len(c.body) < 100_000:
        return c.honest()
    c.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(c.body) + c.body[:100_000])
    time.sleep(0.2)
    return c.reset()


def after_cut(name, code, text, **options):
    """The first answer is cut in the middle; the behaviour answers what follows."""

    def add(behave):
        def cut_first(c):
            if len(c.body) < 100_000:
                return c.honest()
            if sum(path == c.path for path in c.server.asked) > 1:
                return behave(c)
            return c.answer(200, body=c.body[:100_000], length=len(c.body))

        row(name, BLOB, code, text, **options)(cut_first)

    return add


after_cut("Range is ignored", OK, "again in")(lambda c: c.answer(200, body=c.body))
after_cut("a range from elsewhere", OK, "once more from the start")(
    lambda c: c.answer(206, "Content-Range: bytes 0-5/6", body=b"xxxxxx")
    if "range" in c.headers else c.honest())
after_cut("a range of another length", OK, "once more from the start")(
    lambda c: c.answer(206, f"Content-Range: bytes 100000-{len(c.body) - 1}/9", body=b"x" * 9)
    if "range" in c.headers else c.honest())
after_cut("a range without Content-Range", OK, "once more from the start")(
    lambda c: c.answer(206, body=c.body[100_000:]) if "range" in c.headers else c.honest())
after_cut("416", OK, "once more from the start")(
    lambda c: c.answer(416, "Content-Range: bytes */5") if "range" in c.headers else c.honest())
after_cut("416 for everything", NETWORK, "status 416")(lambda c: c.answer(416))
after_cut("a range of other bytes, then the right ones", OK, "digest is")(
    lambda c: c.answer(206, f"Content-Range: bytes 100000-{len(c.body) - 1}/{len(c.body)}",
                       body=bytes(len(c.body) - 100_000)) if "range" in c.headers else c.honest())
after_cut("other bytes for ever", INTEGRITY, "digest is")(
    lambda c: c.answer(206, f"Content-Range: bytes 100000-{len(c.body) - 1}/{len(c.body)}",
                       body=bytes(len(c.body) - 100_000))
    if "range" in c.headers else c.answer(200, body=bytes(len(c.body))))
row("206 for a request without a range", BLOB, NETWORK, "status 206")(
    lambda c: c.answer(206, body=c.body))

# Statuses, and what they tell about time.
for status in (400, 402, 403, 405, 406, 410, 418, 501, 505):
    row(f"status {status}", BLOB, NETWORK, f"status {status}", requests=1)(
        lambda c, status=status: c.answer(status))
row("status 404 of a blob", BLOB, NOT_FOUND, "status 404", requests=1)(lambda c: c.answer(404))
row("status 404 of a manifest", MANIFEST, NOT_FOUND, "status 404")(lambda c: c.answer(404))
row("status 404 of everything", "", NOT_FOUND, "there is no such package")(lambda c: c.answer(404))
for status in (408, 429, 500, 502, 503, 504):
    row(f"status {status} for ever", BLOB, NETWORK, f"status {status}", requests=2)(
        lambda c, status=status: c.answer(status))


def once(status, header):
    def behave(c):
        if sum(path == c.path for path in c.server.asked) > 1:
            return c.honest()
        return c.answer(status, header() if callable(header) else header)

    return behave


def after(seconds):
    return lambda: "Retry-After: " + email.utils.formatdate(time.time() + seconds, usegmt=True)


for status in (429, 503):
    row(f"{status}, Retry-After in seconds", TAG, OK, "again in 1.", slower=1)(
        once(status, "Retry-After: 1"))
    row(f"{status}, Retry-After as a date", TAG, OK, "again in ", slower=1)(
        once(status, after(3)))
    row(f"{status}, Retry-After of a date that was", TAG, OK, "again in 0.0")(
        once(status, after(-100)))
    row(f"{status}, a huge Retry-After", TAG, NETWORK, f"status {status}", requests=1)(
        once(status, "Retry-After: 99999999999999999999"))
    row(f"{status}, a negative Retry-After", TAG, OK, "again in 0.0")(once(status,
                                                                         "Retry-After: -7"))
    row(f"{status}, Retry-After garbage", TAG, OK, "again in 0.0")(once(status,
                                                                      "Retry-After: \xff;soon"))
row("500 with Retry-After, which it does not define", TAG, OK, "again in 0.0")(
    once(500, "Retry-After: 4"))

# Time.
row("stall before an answer", BLOB, NETWORK, "gave up after 2 tries", slower=2)(
    lambda c: c.hold())


@row("stall in a body", BLOB, NETWORK, "gave up after 2 tries", slower=2)
def stall(c):
    c.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(c.body) + c.body[:10])
    c.hold()


row("one byte a second", BLOB, NETWORK, "get http://127.0.0.1", slower=2)(drip)
row("one byte a second, where that is no stall: the deadline", BLOB, NETWORK, "the time for it is "
    "over", network={"stall_seconds": 600, "deadline_seconds": 3}, slower=3)(drip)


@row("headers that drip", TAG, NETWORK, "get http://127.0.0.1",
     network={"stall_seconds": 600, "deadline_seconds": 3}, slower=3)
def drip_headers(c):
    c.send("HTTP/1.1 200 OK\r\n")
    while c.send("X-Padding: x\r\n"):
        time.sleep(0.5)


# Headers and documents.
row("headers of a mebibyte", TAG, NETWORK, "headers have more than")(
    lambda c: c.answer(200, *["X-Padding: " + "x" * 8000] * 130, body=c.body))
row("a header line of a mebibyte", TAG, NETWORK, "")(
    lambda c: c.answer(200, "X-Padding: " + "x" * 1_000_000, body=c.body))
row("Warning headers of 8 KiB", "", OK, "")(
    lambda c: c.honest("Warning: 299 - \"" + "w" * 8192 + '"'))
row("many interim answers", BLOB, OK, "")(
    lambda c: c.send("HTTP/1.1 100 Continue\r\n\r\n" * 20) and c.honest())
row("no HTTP at all", TAG, NETWORK, "")(lambda c: c.send(b"SSH-2.0-OpenSSH_9.2\r\n"))
row("a captive portal", TAG, INTEGRITY, '"text/html"')(
    lambda c: c.answer(200, "Content-Type: text/html; charset=utf-8", body=b"<html>Log in</html>"))
row("a captive portal without a type", TAG, INTEGRITY, "index sample@1")(
    lambda c: c.answer(200, body=b"<html>Log in</html>"))
row("a captive portal in place of a blob", BLOB, INTEGRITY, "bytes of the")(
    lambda c: c.answer(200, "Content-Type: text/html", body=b"<html>Log in</html>"))
row("an index as Content-Type manifest", TAG, INTEGRITY, "Content-Type is")(
    lambda c: c.answer(200, "Content-Type: " + forge.MANIFEST_TYPE, body=c.body))
row("an index as octet-stream, as static servers send it", TAG, OK, "")(
    lambda c: c.answer(200, "Content-Type: application/octet-stream", body=c.body))
row("a manifest in place of an index", TAG, INTEGRITY, "index sample@1")(
    lambda c: c.answer(200, "Content-Type: " + forge.INDEX_TYPE,
                       body=json.dumps({"schemaVersion": 2,
                                        "mediaType": forge.MANIFEST_TYPE}).encode()))
row("a Docker-Content-Digest that lies", TAG, INTEGRITY, "Docker-Content-Digest")(
    lambda c: c.answer(200, "Docker-Content-Digest: " + forge.digest_of(b"x"), body=c.body))
row("tags that go on at another host", TAGS, NETWORK, "goes on at http://192.0.2.1/v2/x",
    package="sample@7")(
    lambda c: c.answer(200, 'Link: <http://192.0.2.1/v2/x>; rel="next"', body=b'{"tags":["1"]}'))
row("tags without end", TAGS, NETWORK, "more than 100 pages", package="sample@7")(
    lambda c: c.answer(200, 'Link: </v2/sample/tags/list?more>; rel="next"',
                       body=b'{"tags":["1"]}'))
row("a version that is listed and not there", TAGS, NOT_FOUND, "the registry lists this version and does not have its index",
    package="sample@7")(lambda c: c.answer(200, body=b'{"tags":["1","7"]}'))
row("tags in pages", TAGS, NOT_FOUND, "published: 1, 2", package="sample@7")(
    lambda c: c.answer(200, body=b'{"tags":["2"]}') if "last" in c.path else
    c.answer(200, 'Link: </v2/sample/tags/list?last=1>; rel="next"', body=b'{"tags":["1"]}'))

# Names, proxies, TLS.
if has_ipv6():
    row("an IPv6 literal", "", OK, "", address="::1", url="http://[::1]:{port}")(lambda c: c.honest())
row("a name that does not resolve", "", NETWORK, "resolve", url="https://registry.invalid")(None)
row("nobody listens", "", NETWORK, "onnect", url="http://127.0.0.1:1")(None)
row("plain http elsewhere", "", USAGE, "plain http is only for this machine",
    url="http://registry.test:{port}")(None)
PROXY = {"KILN_INSECURE_HTTP": "registry.test"}
row("a proxy that wants a login", "", NETWORK, "the proxy wants a login", requests=1,
    url="http://registry.test", env=PROXY | {"http_proxy": "http://127.0.0.1:{port}"})(
    lambda c: c.answer(407, 'Proxy-Authenticate: Basic realm="x"'))
row("a proxy that wants a login for TLS", "", NETWORK, "status 407", requests=1,
    url="https://registry.test", env={"https_proxy": "http://127.0.0.1:{port}"})(
    lambda c: c.answer(407, 'Proxy-Authenticate: Basic realm="x"'))
row("a proxy that wants a login, by all_proxy", "", NETWORK, "into the URL in all_proxy", requests=1,
    url="http://registry.test", env=PROXY | {"all_proxy": "127.0.0.1:{port}"})(
    lambda c: c.answer(407, 'Proxy-Authenticate: Basic realm="x"'))
for value in ("http://", "://", "ftp://127.0.0.1", "127.0.0.1:99999", f"http://user:{PASSWORD}@127.0.0.1:none"):
    row(f"a proxy of {value}", "", NETWORK, "the value of http_proxy is not a proxy's URL, http://HOST:PORT. Correct or unset it",
        url="http://registry.test", env=PROXY | {"http_proxy": value}, requests=0)(None)
row("a proxy where nobody listens", "", NETWORK, "the registry's name and https_proxy", url="https://registry.test",
    env={"https_proxy": f"http://user:{PASSWORD}@127.0.0.1:1"})(None)
row("NO_PROXY", "", NETWORK, "resolve", url="http://registry.test", requests=0,
    env=PROXY | {"http_proxy": "http://127.0.0.1:{port}", "NO_PROXY": "registry.test"})(
    lambda c: c.answer(407))
row("no proxy is asked for this machine", "", OK, "",
    env={"http_proxy": "http://192.0.2.1:1"})(lambda c: c.honest())
TLS = "https://localhost:{port}"
row("TLS", "", OK, "", tls="good", url=TLS)(lambda c: c.honest())
row("TLS of another name", "", NETWORK, "SSL", tls="name", url=TLS, requests=0)(None)
row("TLS that has expired", "", NETWORK, "expired", tls="expired", url=TLS, requests=0)(None)
row("TLS that is self-signed", "", NETWORK, "self", tls="self", url=TLS, requests=0)(None)
row("TLS to a server without", "", NETWORK, "gave up after 2 tries", url=TLS)(lambda c: c.honest())
row("a downgrade to http of this machine", BLOB, NETWORK, "redirects to http://127.0.0.1",
    tls="good", url=TLS)(
    lambda c: c.answer(302, f"Location: http://127.0.0.1:{c.server.port}/x"))
row("an upgrade of the path within TLS", BLOB, OK, "", tls="good", url=TLS)(
    lambda c: c.honest() if "?" in c.path else c.answer(307, f"Location: {c.path}?again"))


def make_certificates(folder):
    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem",
            "-subj", "/CN=test authority", "-days", "2")
    contexts = {}
    for name, host, days in (("good", "localhost", "2"), ("name", "other.test", "2"),
                             ("expired", "localhost", "0"), ("self", "localhost", "2")):
        (folder / f"{name}.ext").write_text(f"subjectAltName=DNS:{host}\n")
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out",
                f"{name}.csr", "-subj", f"/CN={host}")
        signer = (["-signkey", f"{name}.key"] if name == "self" else
                  ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"])
        openssl("x509", "-req", "-in", f"{name}.csr", *signer, "-days", days, "-extfile",
                f"{name}.ext", "-out", f"{name}.pem")
        contexts[name] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        contexts[name].load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return contexts


def files_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def run(work, root, contexts, number, each):
    (name, part, behave, code, text, env, url, tls, address, package, network, requests,
     slower) = each
    server = Server(root, part, behave, contexts[tls] if tls else None, address)
    folder = work / f"row{number}"
    cache = folder / "cache"
    cache.mkdir(parents=True)
    cache.chmod(0o755)
    config = {"schema": "kiln.settings/1", "network": QUICK | network}
    (folder / "config.json").write_text(json.dumps(config))
    unsigned = os.environ["KILN_UNSIGNED"] + ",http://registry.test,https://registry.test,https://registry.invalid"
    environment = {"PATH": "/usr/bin:/bin", "KILN_UNSIGNED": unsigned, "HOME": str(folder), "TMPDIR": str(folder),
                   "KILN_CONFIG": str(folder / "config.json"),
                   "SSL_CERT_FILE": str(work / "ca.pem")}
    environment |= {key: value.format(port=server.port) for key, value in env.items()}
    registry = (url or "http://127.0.0.1:{port}").format(port=server.port)
    start = time.monotonic()
    try:
        done = subprocess.run(
            [KILN, "install", package or "sample@1", "--device", "cpu", "--registry", registry,
             "--cache", str(cache)], env=environment, cwd=folder, capture_output=True, text=True,
            timeout=60)
    except subprocess.TimeoutExpired:
        return f"{name}: still running after 60 s"
    finally:
        server.close()
    took = time.monotonic() - start
    asked = sum(part in path for path in server.asked)
    problems = []
    if done.returncode != code:
        problems.append(f"exit {done.returncode}, expected {code}")
    if text not in done.stderr:
        problems.append(f"the text lacks '{text}'")
    if PASSWORD in done.stdout + done.stderr:
        problems.append("the password is in the text")
    if took < slower:
        problems.append(f"took {took:.2f} s, expected at least {slower}")
    if requests is not None and asked != requests:
        problems.append(f"asked {asked} times, expected {requests}")
    left = files_under(cache)
    if code != OK and [path for path in left if path.startswith(("unpacked/", "refs/"))]:
        problems.append(f"left {left}")
    outside = [path for path in files_under(folder) if not path.startswith("cache/")]
    if outside != ["config.json"]:
        problems.append(f"wrote outside the cache: {outside}")
    shutil.rmtree(folder)
    return f"{name}: {'; '.join(problems)}\n  {done.stderr.strip()[:600]}" if problems else None


def main():
    if not shutil.which("openssl"):
        print("skipped: openssl is not installed")
        return 77
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        root = work / "registry"
        library = bytes(range(256)) * 1024
        forge.Package(root, files={"LICENSE": b"x\n", "lib/libsample.so": library}).publish()
        contexts = make_certificates(work)
        time.sleep(1.1)  # a certificate of 0 days is over now
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda item: run(work, root, contexts, *item),
                                    enumerate(ROWS)))
    failed = [result for result in results if result]
    for result in failed:
        print("FAILED:", result)
    refused = sum(each[3] != OK for each in ROWS)
    print(f"http: {len(ROWS)} behaviours tried, {refused} to be refused and "
          f"{len(ROWS) - refused} to be lived with; {len(failed)} went otherwise; "
          f"{time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
