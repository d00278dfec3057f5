#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln.operators: what PyTorch's dispatcher calls without Python, against the road through Python.

operators_test.py [unittest's options]     as torch_test.py. Exits with 77 (skipped) without PyTorch 2.10.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
    print(f"skipped: PyTorch {torch.__version__} has no stable C ABI of libraries")
    sys.exit(77)

os.environ.setdefault("KILN_OPERATORS", "c++")  # read when kiln.operators is imported

import kiln
import kiln.torch
from kiln import operators

torch.set_num_threads(1)
DEVICE = os.environ.get("KILN_TEST_DEVICE", "cpu")
DTYPE = torch.bfloat16 if DEVICE != "cpu" else torch.float32
D, H = 64, 144


def layer_of(**options):
    torch.manual_seed(3)
    return kiln.torch.SwigluMlp(D, H, device=DEVICE, dtype=DTYPE, **options)


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, DTYPE)


def call_of(layer, x, residual=None):
    biases = [None if b is None else b.detach() for b in (layer.gate_bias, layer.up_bias, layer.down_bias)]
    return (x, *(w.detach() for w in (layer.gate, layer.up, layer.down)), *biases, residual, layer._key)


def digest():
    """Of what all operators give, with each of their optional arguments and without."""
    found = hashlib.sha256()
    for bias in (False, True):
        layer = layer_of(bias=bias)
        for function in (layer, torch.compile(layer, fullgraph=True)):
            for residual in (None, normal(5, D, seed=2)):
                x = normal(5, D).requires_grad_()
                y = function(x, residual)
                frozen = torch.autograd.grad(y.square().sum(), [x, layer.down])  # a part of the gradients
                whole = torch.autograd.grad(function(x, residual).sum(), [x, *layer.parameters()])
                with torch.no_grad():
                    for tensor in (y, function(x, residual), *frozen, *whole):
                        found.update(tensor.float().cpu().numpy().tobytes())
    return found.hexdigest()


class Operators(unittest.TestCase):
    def test_pytorch_calls_no_python(self):
        self.assertEqual(operators.ROAD, "C++")
        layer, x = layer_of(bias=True), normal(5, D).requires_grad_()
        compiled = torch.compile(layer, fullgraph=True)

        def step(function):
            y = function(x, x.detach())
            return [y.detach(), *torch.autograd.grad(y.sum(), [x, *layer.parameters()])]

        expected = step(layer.reference)
        for function in (layer, compiled):
            step(function)
            with mock.patch("kiln.layer.Source.call", side_effect=AssertionError("Python")):
                with torch.no_grad():
                    y = function(x)
                self.assertEqual(y.shape, x.shape)
                for found, wanted in zip(step(function), expected):
                    torch.testing.assert_close(found, wanted, atol=5e-2 if DEVICE != "cpu" else 1e-5, rtol=1e-2)

    def test_both_roads_give_the_same_bits(self):
        environment = {**os.environ, "KILN_OPERATORS": "python"}
        other = subprocess.run([sys.executable, __file__, "digest"], env=environment, stdout=subprocess.PIPE, text=True,
                               check=True).stdout.split()
        self.assertEqual(other, ["Python:", "$KILN_OPERATORS", "says", "so", digest()])

    def test_every_pytorch_takes_it_where_nothing_is_asked_for(self):
        said = {}
        for word in ("", "fortran"):
            done = subprocess.run([sys.executable, "-c", "from kiln import operators; print(operators.ROAD)"],
                                  env={**os.environ, "KILN_OPERATORS": word}, capture_output=True, text=True, check=False)
            said[word] = done.stdout + done.stderr
        self.assertEqual("C++", said[""].strip())
        self.assertIn("$KILN_OPERATORS is 'fortran'; expected c++ or python", said["fortran"])

    def test_it_is_found_where_the_systems_library_is_and_not_in_the_current_folder(self):
        own = os.path.dirname(os.environ["KILN_LIBRARY"])
        with tempfile.TemporaryDirectory() as folder:
            system, here = os.path.join(folder, "system"), os.path.join(folder, "here")
            for place in (system, os.path.join(here, "kiln")):
                os.makedirs(place)
            os.symlink(os.environ["KILN_LIBRARY"], os.path.join(system, "libkiln.so.0"))
            with open(os.path.join(here, "kiln/libkiln_torch.so"), "w") as file:
                file.write("whatever somebody else left here")
            environment = {**os.environ, "LD_LIBRARY_PATH": system}
            for name in ("KILN_LIBRARY", "KILN_OPERATORS"):
                environment.pop(name, None)

            def road():
                done = subprocess.run([sys.executable, "-c", "from kiln import operators; print(operators.ROAD)"],
                                      env=environment, cwd=here, stdout=subprocess.PIPE, text=True, check=True)
                return done.stdout.strip()

            self.assertIn(system, road())
            for place in ("libkiln_torch.so", "kiln/libkiln_torch.so"):
                os.makedirs(os.path.join(system, "kiln"), exist_ok=True)
                os.symlink(os.path.join(own, "libkiln_torch.so"), os.path.join(system, place))
                self.assertEqual(road(), "C++")
                os.unlink(os.path.join(system, place))

    def test_what_fails_has_one_text(self):
        layer = layer_of()
        wide, half = normal(4, D + 1), normal(4, D).to(torch.float64)
        for x in (wide, half):
            with self.assertRaises(RuntimeError) as by_eager, torch.no_grad():  # as PyTorch's own layers throw
                layer(x)
            self.assertIsInstance(by_eager.exception, kiln.InvalidCall)
            with self.assertRaises(RuntimeError) as by_dispatcher:
                torch.ops.kiln.gated_mlp(*call_of(layer, x))
            self.assertEqual(str(by_dispatcher.exception), str(by_eager.exception))
        with torch.no_grad():  # and the next call is as it was
            self.assertEqual(layer(normal(4, D)).shape, (4, D))

    def test_an_error_of_python_comes_through(self):
        layer = layer_of()
        call = call_of(layer, normal(4, D))
        with self.assertRaisesRegex(RuntimeError, "was not made in this process"):
            torch.ops.kiln.gated_mlp(*call[:-1], "swiglu-mlp@1?activation=silu#99")
        other = call_of(layer_of(activation="silu_clamped", limit=2.5), normal(4, D))
        with mock.patch.object(operators.Operator, "bind", side_effect=kiln.NoVariant("nothing fits")):
            with self.assertRaisesRegex(RuntimeError, "^nothing fits"):
                torch.ops.kiln.gated_mlp(*other)
        self.assertEqual(torch.ops.kiln.gated_mlp(*other).shape, (4, D))

    def test_no_rows_and_strides(self):
        layer = layer_of()
        with torch.no_grad():
            self.assertEqual(torch.ops.kiln.gated_mlp(*call_of(layer, normal(0, D))).shape, (0, D))
            x = normal(5, 2 * D)
            torch.testing.assert_close(layer(x[:, ::2]), layer(x[:, ::2].contiguous()), atol=0, rtol=0)
            negative = torch.complex(normal(5, D).float(), normal(5, D).float()).conj().imag.to(DTYPE)
            torch.testing.assert_close(torch.ops.kiln.gated_mlp(*call_of(layer, negative)),
                                       layer(negative.clone()), atol=0, rtol=0)

    def test_threads_at_once(self):
        layer = layer_of()
        inputs = [normal(rows, D, seed=rows) for rows in range(1, 9)]
        with torch.no_grad():
            expected = [layer(x) for x in inputs]
        wrong = []

        def work(x, y):
            for _ in range(50):
                if not torch.equal(torch.ops.kiln.gated_mlp(*call_of(layer, x)), y):
                    wrong.append(x.shape)

        threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    if sys.argv[1:] == ["digest"]:
        print(operators.ROAD, digest())
        sys.exit()
    if not os.path.exists(os.environ["KILN_REGISTRY"]):
        print("skipped: there is no registry")
        sys.exit(77)
    unittest.main()
