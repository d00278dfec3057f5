# SPDX-License-Identifier: Apache-2.0
"""A registry folder of forged packages under metadata that signs whatever a test wants, true or not."""

import json

import forge
from repository import Repository

TRUST = "kiln.tuf"  # the artifact's repository; its tag is "latest"


class SignedRegistry:
    """`metadata` is a Repository: change it, then write()."""

    def __init__(self, root):
        self.root = root
        self.metadata = Repository()
        self.first_root = self.metadata.bytes("root")

    def close(self):
        self.metadata.close()

    def index(self, name="sample", version=1):
        """The bytes of the index that the folder's tag names."""
        layout = json.loads((self.root / name / "index.json").read_bytes())
        [digest] = [each["digest"] for each in layout["manifests"]
                    if each["annotations"]["org.opencontainers.image.ref.name"] == str(version)]
        return (self.root / name / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()

    def vouch(self, index, name="sample", version=1, **custom):
        """The next state: signed for these bytes of an index."""
        self.metadata.add_target(f"{name}/{version}", index)
        if custom:
            self.metadata.signed["targets"]["targets"][f"{name}/{version}"]["custom"] = custom
        self.metadata.release()
        return self.write()

    def advise(self, id="KA-1", **members):
        """The next state: with an advisory of sample, whose members may be anything; None takes one away."""
        document = {"schema": "kiln.advisory/1", "id": id, "text": "wrong sums", "action": "refuse",
                    "published": "2026-11-26T00:00:00Z"} | members
        document = {name: value for name, value in document.items() if value is not None}
        self.metadata.add_target(f"kiln.advisories/{id}", forge.dump(document))
        self.metadata.signed["targets"]["targets"][f"kiln.advisories/{id}"]["custom"] = {"advisory": document}
        self.metadata.release()
        return self.write()

    def files(self):
        return {path.removeprefix("metadata/"): data for path, data in self.metadata.files.items()
                if path.startswith("metadata/") and isinstance(data, bytes)}

    def write(self, change=lambda manifest: manifest):
        """What is signed now, as the registry's artifact."""
        artifact = forge.Package(self.root, name=TRUST)
        layers = [artifact.descriptor(data, "application/vnd.tuf.metadata+json")
                  | {"annotations": {"org.opencontainers.image.title": title}}
                  for title, data in sorted(self.files().items())]
        manifest = forge.dump(change({
            "schemaVersion": 2, "mediaType": forge.MANIFEST_TYPE,
            "artifactType": "application/vnd.kiln.tuf.v1",
            "config": artifact.descriptor(b"{}", "application/vnd.oci.empty.v1+json"), "layers": layers}))
        entry = artifact.descriptor(manifest, forge.MANIFEST_TYPE)
        entry["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
        (self.root / TRUST / "index.json").write_bytes(forge.dump(
            {"schemaVersion": 2, "mediaType": forge.INDEX_TYPE, "manifests": [entry]}))
        (self.root / TRUST / "oci-layout").write_bytes(b'{"imageLayoutVersion":"1.0.0"}')
        return self
