#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/card.py: the tables of CARD.md say the best rival of each shape, what Kiln loses and what failed."""
import json
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import card

RUN = {"gpu": "GPU", "driver": "1", "variant": "v", "torch": "2", "dtype": "bfloat16",
       "date": "2026-01-01", "commit": "c", "regime": "sustained"}
ERRORS = {"kiln_error": 2e-3, "eager_error": 4e-3}


def tables_of(shapes):
    return [*card.eager_tables([RUN | {"shapes": shapes}])]


def eager_alone_has_no_columns_of_rivals():
    lines = tables_of([{"m": 1, "d": 8, "h": 16, "kiln_us": 8.0, "eager_us": 20.0} | ERRORS])
    assert "| 1, 8, 16 | 8.00 | 20.0 | 2.50 | 2.00e-03 | 4.00e-03 |" in lines, lines
    assert not any("rival" in line.lower() for line in lines), lines


def rivals_have_columns_and_losses_are_listed():
    lines = tables_of([
        {"m": 1, "d": 8, "h": 16, "kiln_us": 20.0, "eager_us": 40.0, "compile_us": 30.0} | ERRORS,
        {"m": 2, "d": 8, "h": 16, "kiln_us": 20.0, "eager_us": 30.0, "compile_us": 16.0} | ERRORS,
        {"m": 3, "d": 8, "h": 16, "kiln_us": 20.0, "eager_us": 22.0, "compile_failed": "no memory",
         "quack_failed": "none"} | ERRORS])
    assert "| M, D, H | kiln | eager | compile | eager / kiln | best rival / kiln | error, kiln | error, eager |" in lines
    assert "| 2, 8, 16 | 20.0 | 30.0 | 16.0 | 1.50 | 0.80, compile | 2.00e-03 | 4.00e-03 |" in lines, lines
    assert "| 3, 8, 16 | 20.0 | 22.0 | failed | 1.10 | 1.10, eager | 2.00e-03 | 4.00e-03 |" in lines, lines
    assert "Best rival / kiln over these 3 shapes: geometric mean 1.10, worst 0.800; 1 below 1." in lines, lines
    assert "Below 1: 2, 8, 16 (0.800, compile)." in lines, lines
    assert "compile failed at 1 of them: no memory." in lines, lines
    assert "quack failed at 1 of them: none." in lines, lines


def pointwise_has_a_table_for_each_op():
    shapes = [{"op": op, "m": 1, "h": 16, "kiln_us": 2.0, "eager_us": 5.0, "kiln_gbs": 3000.0,
               "kiln_copy_share": 0.75} | ERRORS for op in ("geglu", "geglu_backward")]
    lines = [*card.pointwise_tables([RUN | {"copy_gbs": 4000.0, "shapes": shapes}])]
    for op in ("geglu", "geglu_backward"):
        assert f"| `{op}` M, H | kiln | eager | best rival / kiln | GB/s | of a copy | error, kiln |" in lines, lines
    assert lines.count("| 1, 16 | 2.00 | 5.00 | 2.50, eager | 3000 | 75% | 2.00e-03 |") == 2, lines


def a_training_step_is_compared_with_what_keeps_and_what_computes_again():
    shape = {"m": 1, "d": 8, "h": 16, "kiln_us": 20.0, "kiln_recompute_us": 30.0, "eager_us": 15.0,
             "kiln_tflops": 12.0} | ERRORS
    lines = [*card.training_tables([RUN | {"shapes": [shape]}])]
    assert "| 1, 8, 16 | 20.0 | 30.0 | 15.0 | 0.75, eager | 12 | 2.00e-03 |" in lines, lines
    assert "Below 1: 1, 8, 16 (0.750, eager)." in lines, lines
    memory = shape | {"kiln_peak_mib": 12.4, "kiln_recompute_peak_mib": 8, "eager_peak_mib": 10}
    lines = [*card.training_tables([RUN | {"shapes": [memory]}])]
    assert "| 1, 8, 16 | 12 | 8 | 10 |" in lines, lines


def a_residual_is_compared_with_an_addition_after_it():
    shape = {"m": 1, "d": 8, "h": 16, "kiln_us": 20.0, "kiln_then_add_us": 25.0, "without_us": 19.0, "eager_us": 50.0,
             "kiln_then_add_error": 3e-3} | ERRORS
    lines = [*card.residual_tables([RUN | {"shapes": [shape]}])]
    assert "| 1, 8, 16 | 20.0 | 25.0 | 19.0 | 50.0 | 1.250 | 2.00e-03 | 3.00e-03 | 4.00e-03 |" in lines, lines
    for name in ("eager_us", *[key for key in shape if key.endswith("_error")]):
        del shape[name]
    lines = [*card.residual_tables([RUN | {"shapes": [shape]}])]
    assert "| M, D, H | kiln | kiln_then_add | without | then add / kiln |" in lines, lines
    assert "| 1, 8, 16 | 20.0 | 25.0 | 19.0 | 1.250 |" in lines, lines


def a_cpu_has_a_table_for_each_dtype():
    shape = {"m": 1, "d": 8, "h": 16, "kiln_bf16_ms": 2.0, "onednn_bf16_ms": 3.0, "onednn_bf16_packed_ms": 1.5,
             "kiln_f32_ms": 4.0, "onednn_f32_ms": 5.0, "openblas_f32_ms": 8.0,
             "openblas_f32_products_ms": 6.0}
    run = {"cpu": "CPU", "rounds": 7, "onednn": "2", "onednn_bf16": "brgemm", "onednn_f32": "jit", "openblas": "0.3"}
    lines = [*card.cpu_tables([RUN | run | {"shapes": [shape]}])]
    assert "| bf16: M, D, H | kiln | onednn | onednn, packed | onednn / kiln | onednn, packed / kiln |" in lines, lines
    assert "| 1, 8, 16 | 2.00 | 3.00 | 1.50 | 1.50 | 0.75 |" in lines, lines
    assert ("| f32: M, D, H | kiln | onednn | openblas | openblas, products | onednn / kiln | openblas / kiln | "
            "openblas, products / kiln |") in lines, lines
    assert "| 1, 8, 16 | 4.00 | 5.00 | 8.00 | 6.00 | 1.25 | 2.00 | 1.50 |" in lines, lines


def losses_of_a_fraction_of_a_percent_show():
    lines = tables_of([{"m": 1, "d": 8, "h": 16, "kiln_us": 100.2, "eager_us": 200.0, "quack_us": 100.0} | ERRORS])
    assert "Best rival / kiln over these 1 shapes: geometric mean 1.00, worst 0.998; 1 below 1." in lines, lines
    assert "Below 1: 1, 8, 16 (0.998, quack)." in lines, lines


def tables_of_a_gpu_stand_together():
    runs = [RUN | {"gpu": gpu, "regime": regime, "shapes": [
        {"m": 1, "d": 8, "h": 16, "kiln_us": 8.0, "eager_us": 20.0} | ERRORS]}
        for gpu, regime in (("B", "burst"), ("A", "sustained"), ("B", "sustained"))]
    lines = [line for line in card.eager_tables(runs) if "driver" in line]
    assert [(line.split(",")[0], "burst" in line) for line in lines] == [
        ("A", False), ("B", False), ("B", True)], lines


def drawn_shapes_are_those_of_each_gpus_newest_library():
    def run(library, date, seed, m, ratio, **pins):
        return RUN | {"library": library, "date": date, "seed": seed, "regime": "burst", "shapes": [
            {"m": m, "d": 8, "h": 16, "kiln_us": 10.0, "eager_us": 20.0, "fused_us": 10 * ratio} | pins]}
    runs = [run("old", "2026-01-01", 1, 100, 0.5), run("new", "2026-01-02", 2, 100, 0.9),
            run("new", "2026-01-02", 3, 100, 1.1), run("new", "2026-01-02", 4, 3000, 1.2),
            run("new", "2026-01-03", 5, 100, 0.1, gated=[])]  # pinned, and so not drawn
    runs += [run("new", "2026-01-02", 6, m, 1.0) for m in (300, 1500)]
    runs += [run("old", "2026-01-01", 7, m, 0.8) | {"gpu": "another"} for m in (100, 300, 1500, 3000)]
    runs += [run("new", "2026-01-02", 8, 1, 0.7) | {"regime": "sustained"}]
    lines = [*card.drawn_table(runs)]
    assert "| 65 to 256 | 2 | 2.000 | 0.995 | 0.900 | 1 |" in lines, lines
    assert "| all | 5 | 2.000 | 1.035 | 0.900 | 1 |" in lines, lines
    assert "| all | 4 | 2.000 | 0.800 | 0.800 | 4 |" in lines, lines
    assert "| 1 to 64 | 1 | 2.000 | 0.700 | 0.700 | 1 |" in lines, lines
    heads = [(line.split(",")[0], "earlier library" in line, "sustained" in line) for line in lines if "driver" in line]
    assert heads == [("GPU", False, False), ("GPU", False, True), ("another", True, False)], heads
    assert not [*card.drawn_table([])]


def a_library_that_was_replaced_has_no_table():
    with tempfile.TemporaryDirectory() as folder:
        package = pathlib.Path(folder) / "geglu-mlp"
        results = package / "bench/results"
        results.mkdir(parents=True)
        for name, library in (("a", "new"), ("a-before", "old")):
            (results / f"{name}.json").write_text(json.dumps({"schema": "geglu-mlp.held_out/1", "library": library}))
        assert [result["library"] for result in card.of_kind(package, "held_out")] == ["new"]


def the_card_has_one_table_a_gpu():
    def run(gpu, regime, count, **rivals):
        return RUN | {"gpu": gpu, "regime": regime, "shapes": [
            {"m": m, "d": 8, "h": 16, "kiln_us": 10.0, "eager_us": 20.0} | rivals | ERRORS for m in range(1, count + 1)]}
    runs = [run("B", "burst", 2, quack_us=12.0), run("B", "sustained", 2, quack_us=9.0), run("B", "sustained", 1, quack_us=8.0),
            run("B", "sustained", 9), run("A", "burst", 1)]
    lines = [*card.short_tables(runs)]
    assert [line.split(",")[0] for line in lines if "driver" in line] == ["A", "B"], lines
    assert "| 2, 8, 16 | 10.0 | 20.0 | 9.00 | quack | 0.90 |" in lines, lines
    assert "| 1, 8, 16 | 10.0 | 20.0 | 20.0 | eager | 2.00 |" in lines, lines


def the_worst_error_is_that_of_all_records():
    records = [{"results": [{"variant": "v", "worst": {"bfloat16": error}}]} for error in (1e-3, 3e-3, 2e-3)]
    load, card.load = card.load, lambda folder: records
    try:
        lines = card.tested_table(pathlib.Path("packages/any"), [{"variant": "v", "tested": "A; B; C"}, {"variant": "w", "tested": "untested"}])
    finally:
        card.load = load
    assert lines[2:] == ["| `v` | A; B; C | bfloat16 3.00e-03 |", "| `w` | untested |  |"], lines


if __name__ == "__main__":
    eager_alone_has_no_columns_of_rivals()
    rivals_have_columns_and_losses_are_listed()
    pointwise_has_a_table_for_each_op()
    a_training_step_is_compared_with_what_keeps_and_what_computes_again()
    a_residual_is_compared_with_an_addition_after_it()
    a_cpu_has_a_table_for_each_dtype()
    losses_of_a_fraction_of_a_percent_show()
    tables_of_a_gpu_stand_together()
    drawn_shapes_are_those_of_each_gpus_newest_library()
    a_library_that_was_replaced_has_no_table()
    the_card_has_one_table_a_gpu()
    the_worst_error_is_that_of_all_records()
