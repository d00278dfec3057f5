# SPDX-License-Identifier: Apache-2.0
"""Runs triton_step.py with the same arguments, refuses before it what a launch would do otherwise than the file says, and
tells what its message leaves out: Triton's error names the kernel's call of a function, and what failed in there is its
cause. It ends with the build that started it, also where that was killed. triton_step.py decides what an image is, so its
bytes are in every build id and thereby in every record; what is only said belongs here."""

import ast
import ctypes
import importlib
import json
import pathlib
import select
import signal
import sys

PR_SET_PDEATHSIG = 1
TYPES = {"int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32",
         "uint64": "u64", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}


def imports_that_differ(tree, folder):
    """Lines with imports that find something else, or nothing, where the kernel's folder is searched."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            yield node.lineno, (f"imports by a leading dot, and is in no package when it is compiled: "
                                f"write \"from {node.module or 'name'} import …\"; its own folder is searched")
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            for name in (module.split(".")[0] for module in modules):
                if name in sys.stdlib_module_names and ((folder / f"{name}.py").exists() or (folder / name).is_dir()):
                    yield node.lineno, f"imports {name}, which is Python's own and not that of its folder: rename that"


def annotations_that_differ(tree, job):
    """Lines with parameters whose type is another one than package.json passes."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name != job["kernel"]:
            continue
        for argument in node.args.args + node.args.kwonlyargs:
            words = ast.unparse(argument.annotation).strip("'\"") if argument.annotation else ""
            wanted = TYPES.get(words.split(".")[-1])
            passed = {form["signature"].get(argument.arg) for form in job["forms"]} - {None, wanted}
            if wanted and passed and not any(kind.startswith("*") for kind in passed):
                yield argument.lineno, (f"has {argument.arg}: {words}, and package.json passes {', '.join(sorted(passed))}: "
                                        "state the type there as {\"value\": …, \"type\": …}, or take the annotation away")


def refuse(job):
    """What would be compiled to something else than the file says."""
    source = pathlib.Path(job["source"])
    if source.stem in sys.stdlib_module_names:
        sys.exit(f"triton: {source}: has the name of a module of Python's own, {source.stem}: rename it")
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError):
        return  # triton_step.py says it
    for line, what in (*imports_that_differ(tree, source.parent), *annotations_that_differ(tree, job)):
        sys.exit(f"triton: {source}:{line}: {job['kernel']} {what}")


def end_with_parent():
    """Also where it has ended by now: then nobody reads what is written."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    if any(event & select.POLLERR for _, event in output.poll(0)):
        sys.exit(1)


def main():
    """The command line."""
    end_with_parent()
    refuse(json.loads(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")))
    try:
        importlib.import_module("triton_step")  # which runs it
    except SystemExit as end:
        print(end.code, file=sys.stderr)
        if "active drivers" in str(end.code):
            print("It asks for the active driver, and there is no GPU when it is compiled: what it would ask of one is a "
                  "constant of an instance, or \"multiprocessors\" in an expression of package.json", file=sys.stderr)
        cause = getattr(end.__context__, "__cause__", None)
        while cause is not None:
            print(f"{type(cause).__name__}: {cause}", file=sys.stderr)
            cause = cause.__cause__
        sys.exit(1)


main()
