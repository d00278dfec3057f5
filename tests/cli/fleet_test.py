#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln lock --hosts: what a fleet of twelve machines, tests/cli/fleet, would get, each with a trouble of its own.

    fleet_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import json
import pathlib
import shutil

import documents
from world import INTEGRITY, KILN_REGISTRY, LOCK, NO_VARIANT, NOT_FOUND, OK, TRUST, USAGE, World, main

FLEET = sorted(pathlib.Path(__file__).resolve().parent.glob("fleet/*.json"))
DEVICE = 14
H100, PTX, CPU = "cu12.9-sm_90a-x86_64", "cu11.8-compute_80-x86_64", "cpu-x86-64-v3"

# Machine: its code, and of each of its GPUs the variant, or what is said of what is in the way.
EXPECTED = {
    "01-h100": (OK, [H100]),
    "02-two-kinds": (OK, [H100, PTX]),
    "03-ptx-alone": (OK, [PTX]),
    "04-old-driver": (NO_VARIANT, ["upgrade the driver from CUDA 10.2"]),
    "05-no-code": (NO_VARIANT, ["run it on a GPU of compute capability >= 8.0"]),
    "06-library-absent": (NO_VARIANT, ["install libcublas.so.12"]),
    "07-library-unknown": (USAGE, ["do not say whether that machine has libcublas.so.12"]),
    "08-driver-does-not-start": (DEVICE, ["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803). Restart the machine"]),
    "09-old-cpu-no-gpu": (NO_VARIANT, ["run it on a CPU of level x86-64-v3"]),
    "10-aarch64": (NO_VARIANT, ["run it on x86_64"]),
    "11-musl": (NO_VARIANT, ["run it on a system with glibc >= 2.17"]),
    "12-damaged": (INTEGRITY, []),
}


class Fleet(World):
    def setUp(self):
        super().setUp()
        self.run_command(KILN_REGISTRY, "publish", "--registry", self.registry, self.built / "fleet", "--records",
                         self.built / "fleet.json", "--allow-untested", "*")
        self.kiln("lock", "fleet-op@1")

    def check(self, *words, hosts=FLEET, code=OK):
        document = self.document("lock", "--check", *words, "--hosts", *hosts, code=code)
        documents.check(document)
        return {pathlib.Path(each["file"]).stem: each for each in document["hosts"]}

    def test_each_machine_and_what_is_in_its_way(self):
        self.assertEqual([each.stem for each in FLEET], list(EXPECTED))
        for file in FLEET[:-1]:
            documents.check(json.loads(file.read_text()))
        machines = self.check(code=NO_VARIANT)  # the code of the first machine that lacks something
        for name, (code, words) in EXPECTED.items():
            machine = machines[name]
            self.assertEqual(machine["code"], code, name)
            self.assertEqual(len(machine["kernels"]), len(words), name)
            for word, share in zip(words, machine["kernels"]):
                self.assertEqual(share["variant"] == word or word in (share["problem"] or ""), True, (name, share))
                self.assertEqual(share["bytes"] > 0, share["variant"] is not None)
        self.assertIn("12-damaged.json", machines["12-damaged"]["problem"])

    def test_tested_or_not_and_what_the_driver_compiles(self):
        machines = self.check(hosts=FLEET[:3])
        [tested] = machines["01-h100"]["kernels"]
        self.assertEqual((tested["tested_on"], tested["compiles_at_start"], tested["processor"]),
                         (["NVIDIA H100 80GB HBM3"], False, "NVIDIA H100 80GB HBM3, 9.0"))
        [untested] = machines["03-ptx-alone"]["kernels"]
        self.assertEqual((untested["tested_on"], untested["tested"], untested["compiles_at_start"]), ([], "untested", True))
        layer = json.loads((self.project / "kiln.lock").read_text())["kernels"]["fleet-op"]["variants"][H100]["layer"]["size"]
        self.assertEqual(tested["bytes"], layer)
        said = self.kiln("lock", "--check", "--hosts", *FLEET[:3])
        self.assertIn("fleet-op@1 cuda:1 (NVIDIA A100-SXM4-80GB, 8.0)  cu11.8-compute_80-x86_64, ", said)
        self.assertIn("untested, compiled by the driver at the first load", said)
        self.assertIn("3 of 3 machines get every kernel of kiln.lock\nkiln.lock holds\n", said)
        self.assertFalse((self.work / "cache/unpacked").exists(), "documents alone were fetched")

    def test_policies_stand_in_the_way(self):
        [share] = self.check("--no-jit", hosts=FLEET[2:3], code=NO_VARIANT)["03-ptx-alone"]["kernels"]
        self.assertIn("allow JIT (drop --no-jit", share["problem"])
        settings = self.work / ".config/kiln/config.json"
        settings.parent.mkdir(parents=True)
        for member, word in (('"tested": "here"', "the settings ask for tested variants"), (f'"deny": ["{PTX}"]', "on the deny list")):
            settings.write_text('{"schema": "kiln.settings/1", %s}' % member)
            machines = self.check(hosts=FLEET[:3], code=NO_VARIANT)
            self.assertEqual({name: each["code"] for name, each in machines.items()},
                             {"01-h100": OK, "02-two-kinds": NO_VARIANT, "03-ptx-alone": NO_VARIANT})
            refused = {each["variant"]: each for each in machines["03-ptx-alone"]["kernels"][0]["refused"]}
            self.assertEqual(refused[PTX]["refusal"], "POLICY")
            self.assertIn(word, refused[PTX]["detail"])

    def test_who_signed_the_tests(self):
        self.run_command(KILN_REGISTRY, "key", self.work / "tester")
        self.run_command(KILN_REGISTRY, "key", self.work / "other")
        self.kiln("trust", "add", self.registry, "--unsigned")
        self.kiln("trust", "require", self.registry, "--key", self.work / "tester.pub", "--statement", "tests")
        [share] = self.check(hosts=FLEET[:1], code=TRUST)["01-h100"]["kernels"]
        self.assertIn("statement tests", share["problem"])
        self.run_command(KILN_REGISTRY, "attest", "fleet-op@1", "--registry", self.registry, "--key", self.work / "tester",
                         "--records", self.built / "fleet.json")
        machines = self.check(hosts=FLEET[:2], code=TRUST)
        [share] = machines["01-h100"]["kernels"]
        self.assertEqual((share["code"], len(share["tests_signed_by"])), (OK, 1))
        self.assertEqual([each["code"] for each in machines["02-two-kinds"]["kernels"]], [OK, TRUST], "PTX was tested nowhere")

    def test_every_kernel_on_every_machine_and_a_lock_file_that_would_change(self):
        self.kiln("lock", "tiny-op@1")
        machines = self.check(hosts=FLEET[:2])
        self.assertEqual([each["name"] for each in machines["02-two-kinds"]["kernels"]],
                         ["fleet-op", "fleet-op", "tiny-op", "tiny-op"])
        self.publish("two")  # tiny-op@1 gains variants
        self.check(hosts=FLEET[:1], code=LOCK)
        [share] = self.check("--device", "cpu", hosts=FLEET[:1], code=LOCK)["01-h100"]["kernels"][:1]
        self.assertEqual(share["variant"], CPU)

    def host(self, name, **changes):
        file = self.work / f"{name}.json"
        file.write_text(json.dumps(json.loads(FLEET[0].read_text()) | changes))
        return file

    def test_a_gpu_that_is_newer_than_the_kernels_and_a_c_library_that_is_older(self):
        newer = self.host("newer", gpus=[{"ordinal": 0, "name": "NVIDIA GB10", "capability": "12.1"}])
        older = self.host("older", glibc="2.12")
        machines = self.check(hosts=[newer, older], code=NO_VARIANT)
        [share] = machines["newer"]["kernels"]
        self.assertEqual((share["variant"], share["compiles_at_start"], share["tested_on"]), (PTX, True, []))
        [share] = machines["older"]["kernels"]
        self.assertIn("run it on a system with glibc >= 2.17", share["problem"])
        self.assertIn("GLIBC", {each["refusal"] for each in share["refused"]})

    def test_a_kernel_that_the_registry_lost(self):
        shutil.rmtree(self.registry / "fleet-op")
        shutil.rmtree(self.work / "cache")
        document = self.document("lock", "--check", "--hosts", FLEET[0], code=NOT_FOUND)
        self.assertIn("find fleet-op in", document["message"])

    def test_files_that_are_not_there(self):
        self.check(hosts=[self.work / "none.json"], code=USAGE)
        (self.project / "kiln.lock").unlink()
        document = self.document("lock", "fleet-op@1", "--check", "--hosts", FLEET[0], code=LOCK)
        self.assertIsNone(document["hosts"], "there is no lock file to hold them against")
        self.kiln("lock", "none@1", "--hosts", FLEET[0], code=NOT_FOUND)


if __name__ == "__main__":
    main()
