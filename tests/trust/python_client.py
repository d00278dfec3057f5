#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python-tuf's own client behind the command line of kiln-tuf: what the simulator is checked against."""

import argparse
import pathlib
import sys

from tuf.ngclient import Updater


def main():
    parser = argparse.ArgumentParser()
    for option in ("metadata-dir", "metadata-url", "target-name", "target-base-url", "target-dir"):
        parser.add_argument(f"--{option}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("init").add_argument("root")
    commands.add_parser("refresh")
    commands.add_parser("download")
    asked = parser.parse_args()
    if asked.command == "init":
        folder = pathlib.Path(asked.metadata_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "root.json").write_bytes(pathlib.Path(asked.root).read_bytes())
        return
    updater = Updater(asked.metadata_dir, asked.metadata_url, asked.target_dir,
                      asked.target_base_url, bootstrap=None)
    updater.refresh()
    if asked.command == "download":
        target = updater.get_targetinfo(asked.target_name)
        if target is None:
            raise LookupError(f"no target {asked.target_name}")
        updater.download_target(target)


try:
    main()
except Exception as error:  # Every refusal of the library ends the command in the same way.
    print(f"{type(error).__name__}: {error}".replace("\n", " "), file=sys.stderr)
    sys.exit(1)
