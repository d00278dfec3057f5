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
import re
import select
import signal
import sys

PR_SET_PDEATHSIG = 1
TYPES = {"int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32",
         "uint64": "u64", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "bool": "u1", "int1": "u1",
         "uint1": "u1", "i1": "u1", "int": "i32", "half": "fp16", "float": "fp32", "double": "fp64"}
TYPES |= {kind: kind for kind in TYPES.values()}
PASSED = ("i32", "i64", "fp32", "fp64")
INSTRUCTION = "Its name is that of an instruction of PTX: give the function another one"


def imports_that_differ(tree, source):
    """Lines with imports that find something else, or nothing, where the kernel's folder is searched."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            yield node.lineno, (f"imports by a leading dot, and is in no package when it is compiled: "
                                f"write \"from {node.module or 'name'} import …\"; its own folder is searched. Or keep the "
                                f"file in a folder, and name as the source one beside that: \"from folder.{source.stem} import …\"")
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            for name in (module.split(".")[0] for module in modules):
                if name in sys.stdlib_module_names and ((source.parent / f"{name}.py").exists() or (source.parent / name).is_dir()):
                    yield node.lineno, f"imports {name}, which is Python's own and not that of its folder: rename that"


def annotations_that_differ(tree, name, job):
    """Lines with parameters whose type is another one than package.json passes."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.name != name:
            continue
        for argument in node.args.args + node.args.kwonlyargs:
            words = ast.unparse(argument.annotation).strip("'\"") if argument.annotation else ""
            wanted = TYPES.get(words.split(".")[-1])
            passed = {form["signature"].get(argument.arg) for form in job["forms"]} - {None, wanted}
            if wanted and passed and not any(kind.startswith("*") for kind in passed):
                if wanted not in PASSED:
                    mend = "no launch passes that type: take the annotation away"
                elif all(kind[0] == wanted[0] for kind in passed):
                    mend = "state the type there as {\"value\": …, \"type\": …}, or take the annotation away"
                else:
                    mend = f"pass {'a float attribute' if wanted[0] == 'f' else 'an integer'} there, or take the annotation away"
                yield argument.lineno, (f"has {argument.arg}: {words}, and package.json passes {', '.join(sorted(passed))}: {mend}")


def refuse(job):
    """What would be compiled to something else than the file says."""
    source = pathlib.Path(job["source"])
    owner = "Triton" if source.stem == "triton" else "Python"
    if owner == "Triton" or source.stem in sys.stdlib_module_names:
        sys.exit(f"triton: {source}: has the name of a module of {owner}'s own, {source.stem}: rename it")
    if "." in source.stem:
        sys.exit(f"triton: {source}: is imported by its name, which has a dot: rename it")
    if not source.is_file():
        sys.exit(f"triton: {source}: is not there: \"source\" of package.json is its path from the package's folder on")
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError):
        return  # triton_step.py says it
    for line, what in (*imports_that_differ(tree, source), *annotations_that_differ(tree, job["kernel"], job)):
        sys.exit(f"triton: {source}:{line}: {job['kernel']} {what}")


def end_with_parent():
    """Also where it has ended by now: then nobody reads what is written."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    if any(event & select.POLLERR for _, event in output.poll(0)):
        sys.exit(1)


def check_function(job):
    """Refuses what the file says of the kernel and the image does not do, once the function is known."""
    stated = set.intersection(*({*form["signature"], *form["constants"]} for form in job["forms"]))
    function = getattr(sys.modules[pathlib.Path(job["source"]).stem], job["kernel"])
    head = f"triton: {job['source']}: {job['kernel']} has"
    while hasattr(function, "fn"):
        if getattr(function, "debug", None):
            sys.exit(f"{head} debug=True, for tl.device_assert, which is not compiled: take it out, and check in the callers")
        configs = getattr(function, "configs", ())
        if any(getattr(config, "pre_hook", None) for config in configs):
            sys.exit(f"{head} a triton.Config with a pre_hook, which would run before each launch and is not compiled: take it "
                     "out of the file, and do what it does, such as writing zeros, in a launch before this one")
        chosen = set(getattr(function, "values", ())).union(*(config.kwargs for config in configs))
        if chosen := sorted(chosen.intersection(getattr(function, "arg_names", ())) - stated):
            sys.exit(f"{head} {', '.join(chosen)} with a default, and a decorator that would choose another value: state it in "
                     "\"constants\" of the instances")
        for parameter in getattr(function, "params", ()):
            value = parameter.default if parameter.name not in stated and not parameter.is_constexpr else None
            is_constant = repr(value) == "1" and not parameter.annotation_type and not parameter.do_not_specialize
            if isinstance(value, (int, float)) and not isinstance(value, bool) and not is_constant:
                sys.exit(f"{head} {parameter.name} with the default {value}, which Triton's launcher passes as a number: state it in "
                         "\"arguments\", what is no integer as a float attribute, or in \"constants\" of each instance, where it has "
                         "no type but takes that of what it is computed with")
        function = function.fn
    file = pathlib.Path(function.__code__.co_filename)
    for line, what in annotations_that_differ(ast.parse(file.read_bytes()), function.__name__, job):
        sys.exit(f"triton: {file}:{line}: {job['kernel']} {what}")


def check_ptx(job):
    """PTX that no ptxas has read: each form has its own name in it, in the place of the kernel's."""
    image = pathlib.Path(sys.argv[3]) / f"{sys.argv[4]}.ptx"
    names = "|".join(form["function"] for form in job["forms"])
    if image.exists() and re.search(rf"^\s*(@\S+\s+)?({names})[.;\s]", image.read_text(encoding="utf-8"), re.M):
        sys.exit(f"triton: {job['source']}: {job['kernel']} ends in PTX that no driver takes\n{INSTRUCTION}")


def frames_of(error):
    """From the innermost call on: (file, name, line, locals)."""
    trace = getattr(error, "__traceback__", None)
    frames = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, code.co_name, trace.tb_lineno, trace.tb_frame.f_locals))
        trace = trace.tb_next
    return reversed(frames)


def place_of(error, job):
    """The file that the kernel stands in; with the line of what failed at import, where that did."""
    for file, name, line, values in frames_of(error):
        if file.startswith(str(pathlib.Path(job["source"]).parent) + "/"):
            return file, f":{line}"
        if name == "run" and hasattr(values.get("function"), "fn"):
            return values["function"].fn.__code__.co_filename, ""
    return job["source"], ""


def advice(said, error, file, job):
    """Lines on how to go on."""
    if isinstance(error, ImportError):
        yield ("A kernel is compiled without site-packages: of a file that exists take the @triton.jit functions and what they "
               "name, without the Python that launches them; docs/TRITON.md, chapter 4, says what stands in its place")
    if "active drivers" in said:
        yield ("It asks for the active driver, and there is no GPU when it is compiled: what it would ask of one is a "
               "constant of an instance, or \"multiprocessors\" in an expression of package.json")
    none = [name for form in job["forms"] if f" as {form['function']}," in said
            for name, value in form["constants"].items() if value is None]
    if none and "'NoneType'" in said:
        yield (f"In this form None are {', '.join(sorted(none))}, as where a tensor is left out: compute with one only under a "
               f"condition that this decides, such as \"if {none[0]} is not None:\" (no \"when\" of package.json takes this form away), "
               "or require the tensor, in an op of its own")
    absent = re.search(r"module 'triton\.language(?:\.math)?' has no attribute '(\w+)'", said)
    if absent and (absent[1] == "libdevice" or hasattr(importlib.import_module("triton.language.extra.libdevice"), absent[1])):
        yield "Functions of libdevice come by \"from triton.language.extra import libdevice\""
    if "as tl.constexpr; it belongs" in said:
        yield ("Where it is no size of a block, but an extent or a stride of the call, take the annotation away, and it is passed "
               "at run time")
    missing = re.search(r"has a parameter (\w+), which is neither", said)
    if missing and re.search(rf"\b{missing[1]}\s*:\s*(tl\.)?constexpr", pathlib.Path(file).read_text(encoding="utf-8")):
        yield "Also what @triton.autotune or @triton.heuristics would choose is stated, in \"constants\" of the instances"
    elif missing:
        yield f"Where it is None in every call, \"constants\" has {{\"{missing[1]}\": null}}"
    if "not supported in this architecture" in said:
        yield (f"Where {job['target']} is to have other dtypes, give this one an op of its own, with \"targets\" of its instances "
               "and \"otherwise\"")
    if "no @triton.jit function" in said:
        module = sys.modules.get(pathlib.Path(job["source"]).stem)
        names = [name for name, value in vars(module).items() if hasattr(value, "arg_names")] if module else []
        yield f"Those at the file's first level are {', '.join(sorted(names)) or 'none'}: one that a function makes has to be moved there"
    if re.search("'tensor' object has no attribute '(load|store)'|'tensor' has no len|unsupported tensor index|cannot unpack non-iterable", said):
        yield ("An argument is one pointer or one number: that it is a descriptor is stated in \"descriptors\"; pass the members of a "
               "tuple one by one")
    if any(type(values.get("function")).__name__ == "GluonJITFunction" for _, _, _, values in frames_of(error)):
        yield "A kernel of Gluon is not compiled: it has to be one of @triton.jit"
    if "a descriptor that is not made" in said:
        yield "The copy engine of sm_90a and sm_120 has these limits: mend the block, or pass the tensor as a pointer"
    if "global scratch memory" in said:
        yield ("Tensor descriptors that a kernel makes need it here, and not for sm_80, sm_90 or sm_100, where they become loads by "
               "pointers; or load by pointers in their place")
    if "Not a name of any known instruction" in said:
        yield INSTRUCTION
    if "Block pointers have been removed" in said:
        yield ("Load by pointers in their place, or, but for sm_90a and sm_120, by tl.make_tensor_descriptor of the same base, shape, "
               "strides and block shape")


def main():
    """The command line."""
    end_with_parent()
    job = json.loads(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"))
    refuse(job)
    try:
        importlib.import_module("triton_step")  # which runs it
    except SystemExit as end:
        error, said, head = end.__context__, str(end.code), f"triton: {job['source']}"
        file, line = place_of(error, job)
        rest = re.sub("^:[0-9]+", "", said[len(head):]) if line else said[len(head):]
        print(f"triton: {file}{line}{rest}" if said.startswith(head) else said, file=sys.stderr)
        causes = ""
        cause = getattr(error, "__cause__", None)
        while cause is not None:
            causes += f"{type(cause).__name__}: {cause}\n"
            cause = cause.__cause__
        print(causes, end="", file=sys.stderr)
        for each in advice(f"{said}\n{causes}", error, file, job):
            print(each, file=sys.stderr)
        sys.exit(1)
    check_function(job)
    check_ptx(job)


main()
