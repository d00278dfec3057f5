#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The launches of a call of swiglu-moe read one table of tiles: in each target, and for any number of tokens an expert,
those that are chosen have one BLOCK_M, and the workspace has room for the table."""

import json
import pathlib
import unittest

PACKAGE = json.loads((pathlib.Path(__file__).resolve().parents[1] / "package.json").read_text(encoding="utf-8"))["cuda"]
LEAST = 16  # what the workspace's count of tiles is for


def chosen(launch, target, slots, experts):
    """The first instance whose condition holds, as the generated host code takes it."""
    names = {"M": slots, "K": 1, "E": experts, "W": 2, "H": 1, "WB": 2, "DB": 1, "HB": 1, "D": 1,
             "cdiv": lambda a, b: -(-a // b)}
    if not eval(launch.get("expects", "True"), names):  # of this package, as all here
        return None
    for instance in launch["instances"]:
        if target in instance.get("targets", [target]) and eval(instance.get("when", "True"), names):
            return instance
    return None


class Launches(unittest.TestCase):
    def test_one_size_of_tiles_in_a_call(self):
        seen = set()
        for op in ("forward", "forward_float8"):
            launches = [one for one in PACKAGE["launches"] if one["op"] == op
                        and one["kernel"] in ("sort_slots", "gated", "down")]
            self.assertEqual([one["kernel"] for one in launches], ["sort_slots", "gated", "down"])
            for target in PACKAGE["targets"]:
                for slots in (0, 1, 95, 96, 97, 799, 800, 801, 100000):
                    found = [chosen(one, target, slots, 8) for one in launches]
                    if op == "forward_float8" and target in ("sm_80", "compute_80"):
                        self.assertEqual(found, [None] * 3)
                        continue
                    sizes = {one["constants"]["BLOCK_M"] for one in found}
                    self.assertEqual(len(sizes), 1, (op, target, slots))
                    seen |= sizes
        self.assertEqual(min(seen), LEAST)
        for part in PACKAGE["workspace"]:
            if part["name"] == "tiles":
                self.assertEqual(part["count"], f"3 * (M * K // {LEAST} + E)")


if __name__ == "__main__":
    unittest.main()
