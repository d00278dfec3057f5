#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A root key that never leaves its token signs a root: SoftHSM, through OpenSSL's PKCS#11 provider.

    pkcs11_test.py KILN_REGISTRY_BINARY

Wants softhsm2, opensc, and pkcs11-provider (Debian 13 has it, 12 has not; its package runs there), which
KILN_PKCS11_PROVIDER may name. Skipped where one is missing.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
PIN = "4321"
TOKEN = ["/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so"]
PROVIDER = [os.environ.get("KILN_PKCS11_PROVIDER", ""), "/usr/lib/x86_64-linux-gnu/ossl-modules/pkcs11.so"]
KEYS = {"ecdsa": "EC:prime256v1", "rsa": "rsa:3072", "ed25519": "EC:edwards25519"}


def first(paths):
    return next((path for path in paths if path and pathlib.Path(path).exists()), None)


def main():
    kiln_registry = os.path.abspath(sys.argv[1])
    token, provider = first(TOKEN), first(PROVIDER)
    if not (token and provider and shutil.which("softhsm2-util") and shutil.which("pkcs11-tool")):
        print("skipped: no softhsm2, opensc or pkcs11-provider here")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "tokens").mkdir()
        (work / "softhsm2.conf").write_text(f"directories.tokendir = {work}/tokens\nobjectstore.backend = file\n")
        (work / "openssl.cnf").write_text(
            "openssl_conf = init\n[init]\nproviders = providers\n[providers]\ndefault = own\npkcs11 = token\n"
            f"[own]\nactivate = 1\n[token]\nmodule = {provider}\npkcs11-module-path = {token}\n"
            "pkcs11-module-quirks = no-deinit no-operation-state\nactivate = 1\n")
        plain = {"PATH": os.environ["PATH"], "HOME": folder, "SOFTHSM2_CONF": str(work / "softhsm2.conf")}
        with_token = plain | {"OPENSSL_CONF": str(work / "openssl.cnf")}

        def run(*words, code=0, **environment):
            done = subprocess.run([*map(str, words)], capture_output=True, text=True, env=environment)
            assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
            return done.stdout

        run("softhsm2-util", "--init-token", "--free", "--label", "kiln", "--so-pin", PIN, "--pin", PIN, **plain)
        for role in ("targets", "online"):
            run(kiln_registry, "key", work / role, **plain)
        for number, (name, kind) in enumerate(KEYS.items()):
            # By the id the provider finds a private key's public half.
            run("pkcs11-tool", "--module", token, "--login", "--pin", PIN, "--token-label", "kiln", "--keypairgen", "--key-type",
                kind, "--label", name, "--id", f"{number + 1:02}", **plain)
            run("openssl", "pkey", "-in", f"pkcs11:token=kiln;object={name};type=public?pin-value={PIN}", "-pubin", "-pubout",
                "-out", work / f"{name}.pub", **with_token)
            root = work / f"{name}.json"
            run(kiln_registry, "init", "--root-key", work / f"{name}.pub", "--targets-key", work / "targets.pub",
                "--online-key", work / "online.pub", "--out", root, **plain)
            private = f"pkcs11:token=kiln;object={name};type=private"
            done = json.loads(run(kiln_registry, "sign", root, "--key", private, "--json", KILN_KEY_PASSPHRASE=PIN, **with_token))
            assert (done["signed"], done["missing"]) == (1, []), done  # verified without the token
            run(kiln_registry, "sign", root, "--key", private, code=7, KILN_KEY_PASSPHRASE="wrong", **with_token)
            print(f"{name}: signed in the token")
    return 0


if __name__ == "__main__":
    sys.exit(main())
