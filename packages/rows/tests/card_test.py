#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/card.py: a card's table says the best rival of each case, what Kiln loses and what failed; other cards stay."""
import json
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import card

RUN = {"schema": "package.bench/1", "gpu": "GPU", "driver": "1", "variant": "v", "torch": "2", "dtype": "bfloat16",
       "date": "2026-01-01", "commit": "c"}


def lines_of(*results):
    return [*card.lines_of(RUN | {"results": [*results]}, "bench/results/gpu.json")]


def a_copy_is_a_column_and_no_rival():
    lines = lines_of({"case": "forward", "us": {"copy": 5.0, "kiln": 10.0, "kiln_in_place": 8.0, "eager": 20.0, "liger": 12.0}})
    assert "|  | kiln | kiln in place | eager | liger | copy | best rival / kiln |" in lines, lines
    assert "| forward | 10.0 | 8.00 | 20.0 | 12.0 | 5.00 | 1.50, liger |" in lines, lines
    assert "Best rival / kiln over these 1 cases: geometric mean 1.50; **0 below 0.95**." in lines, lines


def losses_errors_and_failures_are_named():
    lines = lines_of({"case": "a", "us": {"kiln": 10.0, "eager": 9.0}, "errors": {"kiln": 1e-3, "eager": 1.0}},
                     {"case": "b", "us": {"kiln": 10.0, "eager": 40.0}, "failed": {"liger": "no memory"}})
    assert "| b | 10.0 | 40.0 | 4.00, eager |" in lines, lines
    assert "Best rival / kiln over these 2 cases: geometric mean 1.90; **1 below 0.95**, worst 0.90 (a, eager)." in lines, lines
    assert "Largest relative L2 against fp64 there: 1.0e-03." in lines, lines
    assert "liger failed at 1 of them: no memory." in lines, lines


def modules_of_rivals_have_their_version_or_why_they_are_not_there():
    modules = {"rivals": {"flashinfer": "0.7"}, "left_out": {"liger_kernel": "ModuleNotFoundError: none"}}
    run = RUN | modules | {"results": [{"case": "a", "us": {"kiln": 10.0, "flashinfer": 9.0}}]}
    lines = [*card.lines_of(run, "bench/results/gpu.json")]
    assert "PyTorch 2, flashinfer 0.7, bfloat16" in lines[0], lines
    assert lines[-1] == "liger_kernel was left out: ModuleNotFoundError: none.", lines


def a_card_without_the_markers_stays():
    with tempfile.TemporaryDirectory() as folder:
        package = pathlib.Path(folder)
        (package / "bench/results").mkdir(parents=True)
        (package / "bench/results/gpu.json").write_text(json.dumps(RUN | {"results": [{"case": "a", "us": {"kiln": 1.0}}]}))
        for text in ("# without\n", f"# with\n\n{card.BEGIN}\nold\n{card.END}\nafter\n"):
            path = package / "CARD.md"
            path.write_text(text)
            sys.argv = ["card.py", str(package)]
            card.main()
            assert path.read_text() == text.replace("\nold\n", "\n\n" + "\n".join(lines_of({"case": "a", "us": {"kiln": 1.0}})) + "\n\n")
            sys.argv = ["card.py", "--check", str(package)]
            card.main()


if __name__ == "__main__":
    a_copy_is_a_column_and_no_rival()
    losses_errors_and_failures_are_named()
    modules_of_rivals_have_their_version_or_why_they_are_not_there()
    a_card_without_the_markers_stays()
