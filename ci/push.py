# SPDX-License-Identifier: Apache-2.0
"""Push: one package from an OCI layout to a registry, through skopeo. A stage of ci/publish.

The version's tag is moved last, and only when all that it will name was read back: until then clients
see the version as it was before. Two publishers of one version must take turns: OCI has no
compare-and-swap, and a last look at the tag before it is moved is all that there can be.
"""

import hashlib
import json
import pathlib
import subprocess
import urllib.parse

USAGE, NETWORK, INTEGRITY, CONFLICT = 2, 5, 6, 16  # kiln::ErrorCode


class Refused(Exception):
    """Operation, subject, found, next step; `code` is the exit code."""

    def __init__(self, code, text):
        super().__init__("publish: " + text)
        self.code = code


class Remote:
    """A registry by the URL that kiln takes; skopeo calls it docker://host/prefix."""

    def __init__(self, name):
        url = urllib.parse.urlsplit(name)
        if url.scheme not in ("https", "http") or not url.netloc or url.query or url.fragment:
            raise Refused(USAGE, f"'{name}' is no registry; give a folder or https://host/prefix")
        if url.username or url.password:
            raise Refused(USAGE, "the registry's URL holds a login; log in with 'skopeo login' instead")
        self.name = name
        self._prefix = url.netloc + url.path.rstrip("/")
        self._tls = f"tls-verify={'false' if url.scheme == 'http' else 'true'}"

    def at(self, package, tag):
        return f"{self._prefix}/{package}:{tag}"

    def digest(self, package, tag):
        """Of what a tag names, hashed here; None where there is no such tag or repository."""
        done = self._skopeo("inspect", "--raw", "--" + self._tls, "docker://" + self.at(package, tag))
        if done.returncode == 0:
            return "sha256:" + hashlib.sha256(done.stdout).hexdigest()
        # The two codes of the OCI specification for it. Anything else may be a registry in trouble, and
        # a version that is there must not be taken for a new one.
        if b"manifest unknown" in done.stderr or b"name unknown" in done.stderr:
            return None
        raise self._failed("ask for " + self.at(package, tag), done)

    def push(self, layout, package, tag):
        self._copy("push", f"oci:{layout}:{tag}", f"docker://{self.at(package, tag)}", "--dest-" + self._tls)

    def pull(self, layout, package, tag):
        self._copy("read", f"docker://{self.at(package, tag)}", f"oci:{layout}:{tag}", "--src-" + self._tls)

    def expect(self, package, tag, digest):
        found = self.digest(package, tag)
        if found != digest:
            raise Refused(INTEGRITY, f"verify {self.at(package, tag)}: it names {found or 'nothing'}, "
                                     f"expected {digest}, as pushed. Is someone else publishing it?")

    def _copy(self, verb, source, destination, tls):
        # Without --preserve-digests skopeo may rewrite an index, and its digest with it.
        done = self._skopeo("copy", "--quiet", "--all", "--preserve-digests", tls, source, destination)
        if done.returncode != 0:
            raise self._failed(f"{verb} {source} to {destination}", done)

    def _skopeo(self, verb, *words):
        return subprocess.run(["skopeo", "--insecure-policy", verb, "--retry-times", "3", *words],
                              capture_output=True)

    def _failed(self, what, done):
        return Refused(NETWORK, f"{what}: skopeo says: {done.stderr.decode(errors='replace').strip()}. "
                                "Check the registry and the login ('skopeo login'), and run it again")


def tags_of(layout):
    """Digest by tag of an OCI layout."""
    name = "org.opencontainers.image.ref.name"
    entries = json.loads((pathlib.Path(layout) / "index.json").read_bytes())["manifests"]
    return {e["annotations"][name]: e["digest"] for e in entries if name in e.get("annotations", {})}


def push_version(remote, package, version, layout, before, say):
    """Makes the registry's version what the layout's is; `before` is the digest that the layout began
    with. The tags that were pushed; none if everything was there."""
    tags = tags_of(layout)
    variants = [tag for tag in sorted(tags) if tag.startswith(version + "-")]
    pushed = [tag for tag in variants if remote.digest(package, tag) != tags[tag]]
    for tag in pushed:
        say(f"  push    {remote.at(package, tag)}")
        remote.push(layout, package, tag)
    if before == tags[version]:
        return pushed
    for tag in variants:
        remote.expect(package, tag, tags[tag])
    if remote.digest(package, version) != before:
        raise Refused(CONFLICT, f"commit {remote.at(package, version)}: someone else moved it meanwhile; it "
                                "was left alone. Run it again")
    say(f"  commit  {remote.at(package, version)} {tags[version]}")
    remote.push(layout, package, version)
    return pushed + [version]


def read_back(remote, package, version, layout, into):
    """Compares each tag, and brings the whole version back into a new layout."""
    tags = tags_of(layout)
    for tag in tags:
        remote.expect(package, tag, tags[tag])
    remote.pull(into, package, version)
    found = tags_of(into)[version]
    if found != tags[version]:
        raise Refused(INTEGRITY, f"verify {remote.at(package, version)}: it is read back as {found}, expected "
                                 f"{tags[version]}, as pushed. Is a proxy between that changes manifests?")
    return len(tags)
