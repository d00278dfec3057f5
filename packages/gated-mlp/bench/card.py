#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the measured parts of a package's CARD.md, between its markers, and its bench/TIMES.md.

The registry says what was tested. The times come from bench/results/: the card has one short table a GPU, and that of
the drawn shapes; TIMES.md has the whole ones.

    bench/card.py [--kiln PATH] PACKAGE            rewrites both; PACKAGE is a folder
    bench/card.py [--kiln PATH] PACKAGE --check    exit status 1 if they are not what the data says;
                                                   --some: the registry has some of the variants

KILN_REGISTRY must name a registry that holds the package and the files of record/.
"""
import argparse
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys


def load(folder, wanted=lambda file: True):
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json")) if wanted(file)]


def published_variants(package, kiln):
    """What the registry says about each variant. A record counts only for the library that it tested."""
    schema = json.loads((package / "package.json").read_text(encoding="utf-8"))
    spec = f"{schema['name']}@{schema['version']}"
    answer = subprocess.run([kiln, "info", spec, "--json"], check=True, capture_output=True)
    return sorted(json.loads(answer.stdout)["variants"], key=lambda variant: variant["variant"])


def tested_table(package, variants):
    worst = {}  # variant -> dtype -> error, over all machines that tested it
    for record in load(package / "record"):
        for result in record["results"]:
            errors = worst.setdefault(result["variant"], {})
            for dtype, error in result["worst"].items():
                errors[dtype] = max(error, errors.get(dtype, 0))
    lines = ["| variant | tested on | worst relative L2 against fp64 |", "|---|---|---|"]
    for variant in variants:
        name, tested = variant["variant"], variant["tested"]
        errors = {} if tested == "untested" else worst[name]
        text = ", ".join(f"{dtype} {error:.2e}" for dtype, error in errors.items())
        lines.append(f"| `{name}` | {tested} | {text} |")
    return lines


def table(header, rows):
    yield "| " + " | ".join(header) + " |"
    yield "|---" * len(header) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def rivals_of(shapes):
    """The rivals that were timed at any of the shapes, in the order of the data."""
    names = dict.fromkeys(key.removesuffix("_us") for s in shapes for key in s if key.endswith("_us"))
    return [name for name in names if name not in ("kiln", "portable", "kiln_recompute")]


def best_of(s, rivals):
    """The best rival's name and its time over Kiln's."""
    name = min((name for name in rivals if f"{name}_us" in s), key=lambda name: s[f"{name}_us"])
    return name, s[f"{name}_us"] / s["kiln_us"]


def microseconds(s, name):
    if f"{name}_us" not in s:
        return "failed"
    us = s[f"{name}_us"]
    return f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def shape_of(s):
    return ", ".join(str(s[key]) for key in "mdh" if key in s)


def ratios_line(what, ratios):
    return (f"{what} / kiln over these {len(ratios)} shapes: geometric mean "
            f"{statistics.geometric_mean(ratios):.2f}, worst {min(ratios):.3f}; "
            f"{sum(ratio < 1 for ratio in ratios)} below 1.")


def best_rival_lines(shapes, rivals):
    """Compares Kiln with the best of several rivals, and names every shape where Kiln is slower."""
    best = [(*best_of(s, rivals), shape_of(s)) for s in shapes]
    yield ratios_line("Best rival", [ratio for _, ratio, _ in best])
    lost = sorted((ratio, f"{shape} ({ratio:.3f}, {name})") for name, ratio, shape in best if ratio < 1)
    if lost:
        yield "Below 1: " + "; ".join(text for _, text in lost) + "."


def failure_lines(shapes):
    for name in dict.fromkeys(key.removesuffix("_failed") for s in shapes for key in s if key.endswith("_failed")):
        reasons = [s[f"{name}_failed"] for s in shapes if f"{name}_failed" in s]
        yield f"{name} failed at {len(reasons)} of them: {reasons[0]}."


def measured_on(result):
    return (f"{result['gpu']}, driver {result['driver']}, variant `{result['variant']}`, "
            f"PyTorch {result['torch']}, {result['dtype']}, {result['date']}, commit {result['commit']}; "
            f"{result['regime']}; median, microseconds")


def by_gpu(result):
    return result["gpu"], len(result["shapes"]), "burst" in result["regime"]


def eager_table(result):
    shapes = result["shapes"]
    rivals = rivals_of(shapes)
    portable = "portable_us" in shapes[0]
    several = len(rivals) > 1
    header = (["M, D, H", "kiln", *rivals, "eager / kiln"] + ["best rival / kiln"] * several +
              ["portable"] * portable + ["error, kiln", "error, eager"])
    rows = []
    for s in shapes:
        name, ratio = best_of(s, rivals)
        rows.append([shape_of(s), microseconds(s, "kiln"), *(microseconds(s, name) for name in rivals),
                     f"{s['eager_us'] / s['kiln_us']:.2f}"] + [f"{ratio:.2f}, {name}"] * several +
                    ([microseconds(s, "portable")] if portable else []) +
                    [f"{s['kiln_error']:.2e}", f"{s['eager_error']:.2e}"])
    yield from ["", measured_on(result) + ":", "", *table(header, rows), ""]
    yield ratios_line("Eager", [s["eager_us"] / s["kiln_us"] for s in shapes])
    if several:
        yield from best_rival_lines(shapes, rivals)
    yield from failure_lines(shapes)
    if portable:
        yield "Portable: the kernels for every GPU from sm_80, on this one, in the same run."
    if "watts" in shapes[0]:
        yield (f"Clock and power at {shape_of(shapes[0])}: "
               f"{shapes[0]['sm_mhz']:.0f} MHz, {shapes[0]['watts']:.0f} W.")


def eager_tables(results):
    if any(len(rivals_of(result["shapes"])) > 1 for result in results):
        yield from ["", "Rivals: eager is what a user writes. compile and autotune are torch.compile of eager in its "
                    "default and its max-autotune mode, for the exact shape. concatenated has gate and up in one "
                    "weight. liger is Liger-Kernel's fused gate between eager's GEMMs. quack is QuACK's MLP, untuned; quack_tuned has the kernels that its own search takes."]
    for result in sorted(results, key=by_gpu):
        yield from eager_table(result)


def pointwise_tables(results):
    for result in sorted(results, key=by_gpu):
        yield from ["", measured_on(result) + f"; GB/s and their share of a copy's, {result['copy_gbs']:.0f} "
                    "GB/s in the same run, count each input and output once:"]
        for op in dict.fromkeys(s["op"] for s in result["shapes"]):
            shapes = [s for s in result["shapes"] if s["op"] == op]
            rivals = rivals_of(shapes)
            rows = []
            for s in shapes:
                name, ratio = best_of(s, rivals)
                rows.append([shape_of(s), *(microseconds(s, n) for n in ["kiln", *rivals]), f"{ratio:.2f}, {name}",
                             f"{s['kiln_gbs']:.0f}", f"{100 * s['kiln_copy_share']:.0f}%",
                             f"{s['kiln_error']:.2e}"])
            yield from ["", *table([f"`{op}` M, H", "kiln", *rivals, "best rival / kiln", "GB/s", "of a copy",
                                    "error, kiln"], rows), "", *best_rival_lines(shapes, rivals), *failure_lines(shapes)]


def training_tables(results):
    for result in sorted(results, key=by_gpu):
        shapes = result["shapes"]
        rivals = rivals_of(shapes)
        rows = []
        for s in shapes:
            name, ratio = best_of(s, rivals)
            rows.append([shape_of(s), *(microseconds(s, n) for n in ["kiln", "kiln_recompute", *rivals]),
                         f"{ratio:.2f}, {name}", f"{s['kiln_tflops']:.0f}", f"{s['kiln_error']:.2e}"])
        yield from ["", measured_on(result) + "; a training step: y and the gradients of x, gate, up and down; "
                    f"TFLOP/s count nine products{'; quack is untuned' * ('quack' in rivals)}:", "",
                    *table(["step of M, D, H", "kiln", "kiln, recompute", *rivals, "best rival / kiln", "TFLOP/s",
                            "worst error, kiln"], rows), "", *best_rival_lines(shapes, rivals), *failure_lines(shapes)]
        if "kiln_peak_mib" in shapes[0]:
            names = ["kiln", "kiln_recompute", *rivals]
            yield from ["", "The most memory of a step beside its inputs, MiB:", "",
                        *table(["M, D, H", *names], ([shape_of(s), *(f"{s[f'{name}_peak_mib']:.0f}" if f"{name}_us" in s
                                                                     else "failed" for name in names)] for s in shapes))]


def residual_tables(results):
    for result in sorted(results, key=lambda result: (by_gpu(result), result["variant"])):
        shapes = result["shapes"]
        names = [name for name in ("kiln", "kiln_then_add", "without", "eager") if f"{name}_us" in shapes[0]]
        errors = [name for name in names if f"{name}_error" in shapes[0]]
        ratios = [s["kiln_then_add_us"] / s["kiln_us"] for s in shapes]
        rows = [[shape_of(s), *(microseconds(s, name) for name in names), f"{ratio:.3f}",
                 *(f"{s[f'{name}_error']:.2e}" for name in errors)] for s, ratio in zip(shapes, ratios)]
        yield from ["", measured_on(result) + "; y = residual + MLP(x), by Kiln in its kernel or by torch.add after it; "
                    "without: Kiln's forward alone:", "",
                    *table(["M, D, H", *names, "then add / kiln", *(f"error, {name}" for name in errors)], rows), "",
                    ratios_line("Then add", ratios)]


def cpu_tables(results):
    """A table of each dtype; milliseconds, and the rival's time over Kiln's."""
    for result in results:
        yield from ["", f"{result['cpu']}, variant `{result['variant']}`, {result['date']}, commit "
                    f"{result['commit'][:12]}, {result['rounds']} rounds; {result['regime']}; median, milliseconds. "
                    f"OpenBLAS: {result['openblas']}; three cblas_sgemm and one pass for gelu(g) * u. oneDNN "
                    f"{result['onednn']}: three matmuls, gelu and the product with u fused "
                    f"({result['onednn_bf16']}, {result['onednn_f32']}), on these weights or packed before the run."]
        for dtype, rivals in {"bf16": ["onednn", "onednn_packed"], "f32": ["onednn", "openblas", "openblas_products"]}.items():
            way = lambda name: "_".join([*(words := name.split("_"))[:1], dtype, *words[1:]])
            rows = [[shape_of(s), *(f"{s[way(name) + '_ms']:.2f}" for name in ["kiln", *rivals]),
                     *(f"{s[way(name) + '_ms'] / s[f'kiln_{dtype}_ms']:.2f}" for name in rivals)]
                    for s in result["shapes"]]
            names = [name.replace("_", ", ") for name in rivals]
            yield from ["", *table([f"{dtype}: M, D, H", "kiln", *names, *(f"{name} / kiln" for name in names)], rows)]


ROWS = {"1 to 64": (1, 64), "65 to 256": (65, 256), "257 to 1024": (257, 1024), "1025 to 2048": (1025, 2048),
        "2049 and more": (2049, math.inf), "all": (1, math.inf)}


def drawn_table(results):
    """Of the shapes that forwards.py drew: of each GPU and regime the newest library's, its seeds together, by rows."""
    drawn = [result for result in results
             if "gated" not in result["shapes"][0] and result.get("widths", "others") == "others"]
    newest = max(drawn, key=lambda result: result["date"], default=None)
    for gpu, burst in sorted({drawn_where(result) for result in drawn}, key=lambda where: (where[0], not where[1])):
        there = [result for result in drawn if drawn_where(result) == (gpu, burst)]
        library = max(there, key=lambda result: result["date"])["library"]
        yield from drawn_table_of([result for result in there if result["library"] == library],
                                  library != newest["library"])


def drawn_where(result):
    return result["gpu"], "burst" in result["regime"]


def drawn_table_of(drawn, earlier):
    every = [s for result in drawn for s in result["shapes"]]
    rivals = rivals_of(every)
    shapes = [(s["m"], best_of(s, rivals)[1], s["eager_us"] / s["kiln_us"]) for s in every]

    def row(name, least, most):
        best, eager = zip(*((best, eager) for m, best, eager in shapes if least <= m <= most))
        return [name, str(len(best)), f"{statistics.geometric_mean(eager):.3f}", f"{statistics.geometric_mean(best):.3f}",
                f"{min(best):.3f}", str(sum(ratio < 1 for ratio in best))]

    newest = max(drawn, key=lambda result: result["date"])
    seeds = sorted({result["seed"] for result in drawn})
    rows = {name: (least, most) for name, (least, most) in ROWS.items() if any(least <= m <= most for m, *_ in shapes)}
    yield from ["", f"{newest['gpu']}, driver {newest['driver']}, variant `{newest['variant']}`, PyTorch {newest['torch']}, "
                f"{newest['date']}, commit {newest['commit'].split()[0][:8]}{', an earlier library' * earlier}; "
                "widths of published models that no kernel was chosen for, rows drawn by the seed"
                f"{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}, {'bursts' if drawn_where(newest)[1] else 'sustained'}. best: the best of "
                f"{', '.join(rivals)}; its time over Kiln's. fused is cuBLAS's products beside Kiln's own gate:", "",
                *table(["rows", "shapes", "eager / kiln", "best / kiln", "worst", "below 1"],
                       [row(name, *bounds) for name, bounds in rows.items()])]


def short_tables(results):
    """Of each GPU the table of several shapes with the most rivals, and of them the one with the most shapes, sustained."""
    def rank(result):
        shapes = result["shapes"]
        return len(shapes) > 1, len(rivals_of(shapes)), len(shapes), "burst" not in result["regime"]

    for gpu in dict.fromkeys(result["gpu"] for result in sorted(results, key=by_gpu)):
        result = max((result for result in results if result["gpu"] == gpu), key=rank)
        shapes = result["shapes"]
        rivals = rivals_of(shapes)
        rows = []
        for s in shapes:
            name, ratio = best_of(s, rivals)
            rows.append([shape_of(s), microseconds(s, "kiln"), microseconds(s, "eager"), microseconds(s, name),
                         name, f"{ratio:.2f}"])
        yield from ["", measured_on(result) + f"; rivals {', '.join(rivals)}{'; quack is untuned' * ('quack' in rivals)}:", "",
                    *table(["M, D, H", "kiln", "eager", "best rival", "which", "best rival / kiln"], rows), "",
                    *best_rival_lines(shapes, rivals)]


def of_kind(package, kind):
    """A file NAME-before.json has the times of a library that NAME.json has replaced, often of the same date."""
    return [r for r in load(package / "bench/results", lambda file: not file.stem.endswith("-before"))
            if r["schema"] == f"{package.name}.{kind}/1"]


def speed_section(package):
    yield from drawn_table(of_kind(package, "held_out"))
    yield from short_tables(of_kind(package, "eager"))
    yield from ["", "[TIMES.md](bench/TIMES.md) has every rival and regime, training, the elementwise ops and CPUs."]


def all_tables(package):
    for kind, tables in (("eager", eager_tables), ("pointwise", pointwise_tables), ("training", training_tables),
                         ("residual", residual_tables), ("cpu", cpu_tables)):
        yield from tables(of_kind(package, kind))


def times(package):
    """bench/TIMES.md."""
    return "\n".join([f"# {package.name}: times", "", "Made by `card.py` of the files in `results/`; each table names the "
                      "commit whose kernels it timed.", *all_tables(package), ""])


def fill(package, card, variants):
    sections = {"tested": tested_table(package, variants), "speed": [*speed_section(package)][1:]}
    for name, lines in sections.items():
        begin, end = f"<!-- {name}: generated by bench/card.py -->", f"<!-- end of {name} -->"
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        body = "\n".join([begin, "", *lines, "", end])
        card, count = re.subn(pattern, lambda _: body, card, flags=re.DOTALL)
        if count != 1:
            sys.exit(f"card: CARD.md has {count} sections '{begin}', expected 1")
    return card


def only_of(variants, card):
    """The card without what it says of other variants' tests."""
    names = {variant["variant"] for variant in variants}
    before, rest = card.split("<!-- tested:")
    section, after = rest.split("<!-- end of tested -->")
    rows = ((line, re.match(r"\| `(.+?)` \|", line)) for line in section.splitlines(keepends=True))
    section = "".join(line for line, row in rows if not row or row[1] in names)
    return f"{before}<!-- tested:{section}<!-- end of tested -->{after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--some", action="store_true", help="with --check: of some variants")
    parser.add_argument("package", type=pathlib.Path)
    parser.add_argument("--kiln", default="kiln", help="the command line program")
    arguments = parser.parse_args()
    package = arguments.package.resolve()
    path = package / "CARD.md"
    old = path.read_text(encoding="utf-8")
    variants = published_variants(package, arguments.kiln)
    if arguments.check and arguments.some:
        old = only_of(variants, old)
    new = fill(package, old, variants)
    pages = {path: (old, new)}
    page = package / "bench/TIMES.md"
    pages[page] = (page.read_text(encoding="utf-8") if page.exists() else "", times(package))
    for name, (was, text) in pages.items():
        if arguments.check and text != was:
            sys.exit(f"card: {name} is not what record/ and bench/results/ say; run bench/card.py")
        if not arguments.check:
            name.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
