# SPDX-License-Identifier: Apache-2.0
"""Compiles the forms of one Triton kernel for one target into one image. A step of `kiln build`, which writes the job
down and starts this with the pinned wheel and no site-packages:

    triton_step.py WHEEL JOB.json OUT STEM

    WHEEL   the folder that holds the package triton
    OUT     gets STEM.cubin or STEM.ptx, STEM.ptxas.txt, STEM.json (what the host code needs) and read.d (the files
            that were read, none of which may be unknown to the build)

The job: source, name (of the source, in messages), kernel, target ("sm_90", "compute_80"), ptx (90: version 9.0),
ptxas (its name), and forms: function (its name in the image), signature, constants, aligned, warps, stages, registers.

Each form is a module of PTX with one entry. They become one module, in which the names of each are its own.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

DECLARED = re.compile(r"^(?:\.(?:visible|weak) )?\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)"
                      r"|^(?:\.(?:visible|weak|extern) )?\.(?:shared|global|const)\b[^;={]*?([\w$]+)(?:\[[^\]]*\])*"
                      r"\s*[;=]", re.M)


class Refused(Exception):
    """A message for who writes the kernel."""


def note_files_read(wheel, out):
    """Every file that is opened from here on, but those of the wheel, of Python and of this step."""
    files = {}
    own = [str(wheel), str(out), os.path.realpath(__file__), "/dev/", "/proc/", "/sys/"]
    own += [os.path.realpath(path) for key, path in sysconfig.get_paths().items() if key.endswith("stdlib")]

    def opened(event, arguments):
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith(tuple(own)) and os.path.isfile(path):
                files[path] = None

    sys.addaudithook(opened)
    return files


def find_kernel(job):
    """The JITFunction; the decorators that would choose and benchmark at run time are taken off."""
    import importlib
    from triton.runtime.jit import JITFunction

    source = pathlib.Path(job["source"])
    sys.path.insert(0, str(source.parent))
    module = importlib.import_module(source.stem)
    function = getattr(module, job["kernel"], None)
    while not isinstance(function, JITFunction) and hasattr(function, "fn"):
        function = function.fn
    if not isinstance(function, JITFunction):
        raise Refused(f"has no @triton.jit function {job['kernel']}")
    return function


def constants_of(function, form):
    """By parameter; those with a default in the function need not be named."""
    import triton.language as tl

    dtypes = {"fp64": tl.float64, "fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16, "fp8e4nv": tl.float8e4nv,
              "fp8e5": tl.float8e5, "i64": tl.int64, "i32": tl.int32, "i16": tl.int16, "i8": tl.int8, "u8": tl.uint8,
              "i1": tl.int1}
    names = function.arg_names
    given = {**form["signature"], **form["constants"]}
    for name in given:
        if name not in names:
            raise Refused(f"has no parameter {name}; its parameters are {', '.join(names)}")
    constants = {name: dtypes[value["dtype"]] if isinstance(value, dict) else value
                 for name, value in form["constants"].items()}
    for parameter in function.params:
        if parameter.name in form["signature"] and parameter.is_constexpr:
            raise Refused(f"has {parameter.name} as tl.constexpr; it belongs into \"constants\"")
        if parameter.name not in given:
            if not parameter.has_default:
                raise Refused(f"has a parameter {parameter.name}, which is neither an argument nor a constant")
            constants[parameter.name] = parameter.default
    return constants


def capability_of(target):
    """Which GPU Triton writes PTX for. It thinks of sm_90a where it is told 90: what sm_90 and sm_100 share with all later
    GPUs is the PTX of 8.9, which ptxas then assembles for them."""
    number = int(re.sub(r"\D", "", target))
    return 89 if 90 <= number < 120 and target[-1].isdigit() else number


def compile_form(function, form, job):
    """PTX, and what Triton says of it."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend
    from triton._C.libtriton import ir

    constants = constants_of(function, form)
    names = function.arg_names
    signature = {name: form["signature"].get(name, "constexpr") for name in names}
    hints = {(names.index(name),): [["tt.divisibility", 16]] for name in form["aligned"]}
    source = ASTSource(function, signature, constants, hints)
    target = GPUTarget("cuda", capability_of(job["target"]), 32)
    backend = make_backend(target)
    options = backend.parse_options({
        "num_warps": form["warps"], "num_stages": form["stages"], "maxnreg": form["registers"] or None,
        "ptx_version": job["ptx"], "enable_fp_fusion": True, **source.parse_options()})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    metadata = {"target": target, **options.__dict__}
    stages = {}
    backend.add_stages(stages, options, source.language)
    module = source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(),
                            context)
    for name, stage in stages.items():
        if name != "cubin":
            module = stage(module, metadata)
    check_metadata(metadata)
    return module, metadata


def check_metadata(metadata):
    """What would need more at a launch than the kernel's own arguments."""
    for key, what in (("global_scratch_size", "global scratch memory"), ("profile_scratch_size", "profile memory")):
        if metadata.get(key):
            raise Refused(f"needs {metadata[key]} bytes of {what}, which nobody gives it; use the op's workspace")
    if metadata.get("num_ctas", 1) != 1 or metadata.get("launch_cooperative_grid"):
        raise Refused("needs a cluster or a cooperative grid, which is not launched")


def check_maps(maps, kinds):
    """That the copy engine is asked for what the host code describes: blocks of 8 rows or more, in pieces of at most 256
    rows of 128 bytes, each row a swizzled line of 32, 64 or 128."""
    for one, kind in zip(maps, (kind for kind in kinds if kind.startswith("tensordesc"))):
        rows, columns = (int(extent) for extent in re.findall(r"\d+", kind[kind.index("["):]))
        piece = [min(rows, 256), min(columns, 128 // one["elem_size"])]
        line = {32: 1, 64: 2, 128: 3}.get(piece[1] * one["elem_size"])
        if one["block_size"] != piece or one["swizzle"] != line or one["fp4_padded"] or one["is_im2col"]:
            raise Refused(f"wants a descriptor that is not made: {kind}, {rows} rows of {columns * one['elem_size']} bytes, "
                          f"in pieces of {one['block_size']} with swizzle {one['swizzle']}; expected 8 rows or more, each "
                          f"of 32 bytes or more and read as it is multiplied")


def facts_of(function, ptx, metadata, form):
    """What the host code needs of one form."""
    from triton.backends.driver import expand_signature

    entry = ptx[ptx.index(".entry"):]
    arguments = entry[:entry.index(")")].count(".param")
    threads = re.search(r"\.reqntid (\d+)", entry)
    maps = metadata["tensordesc_meta"] or []
    kinds = [form["signature"][name] for name in function.arg_names if name in form["signature"]]
    check_maps(maps, kinds)
    expected = expand_signature(kinds, maps, "map")
    return {"threads": int(threads[1]), "shared": metadata["shared"] or 0, "scratch": arguments - len(expected),
            "maps": bool(maps)}


def renamed(ptx, kernel, function, number):
    """What is declared in the module under names that no other form has; without the module's head."""
    body = ptx[ptx.index(".address_size 64") + len(".address_size 64"):]
    names = {match[1] or match[2] for match in DECLARED.finditer(body)}
    return re.sub(r"(?<![\w$%.])[A-Za-z_$][\w$]*",
                  lambda word: function if word[0] == kernel else
                  f"{word[0]}${number}" if word[0] in names else word[0], body)


def assemble(ptx, job, wheel, out, stem):
    """Machine code by ptxas; its messages go into the log."""
    source, image = out / "whole.ptx", out / f"{stem}.cubin"
    source.write_text(ptx)
    ptxas = wheel / "triton/backends/nvidia/bin" / job["ptxas"]
    done = subprocess.run([ptxas, "-v", "--regAllocOptLevel=2", f"--gpu-name={job['target']}", source, "-o", image],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stdout + done.stderr
        hint = ""
        if re.search(r"(requires|not supported on) \.target", said) and job["target"][-1].isdigit():
            hint = f"\nIt uses what {job['target']}a alone has: that would have to be the target, not {job['target']}"
        raise Refused(f"ends in PTX that {job['ptxas']} refuses:\n{said}{hint}")
    return image.stat().st_size, re.sub(r".*Compile time = .*\n", "", done.stderr)


def place_of(error, function):
    """":12", where the error says so: Triton counts the lines from the function's "def" on."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    node = getattr(error, "node", None)
    if function is None or not hasattr(node, "lineno"):
        return ""
    decorators = next(number for number, line in enumerate(function.raw_src) if line.lstrip().startswith("def "))
    return f":{function.starting_line_number + decorators + node.lineno - 1}"


def run(wheel, job, out, stem):
    """Writes the step's outputs."""
    from triton import knobs

    knobs.compilation.disable_line_info = True
    function = None
    form = None
    try:
        function = find_kernel(job)
        facts, bodies = {}, []
        for number, form in enumerate(job["forms"]):
            ptx, metadata = compile_form(function, form, job)
            facts[form["function"]] = facts_of(function, ptx, metadata, form)
            bodies.append(renamed(ptx, metadata["name"], form["function"], number))
        form = None
        machine = job["target"].replace("compute", "sm")
        version = f"{job['ptx'] // 10}.{job['ptx'] % 10}"
        whole = f".version {version}\n.target {machine}\n.address_size 64\n" + "".join(bodies)
        log = "PTX: the driver chooses the registers\n"
        if job["target"].startswith("sm_"):
            size, log = assemble(whole, job, wheel, out, stem)
        else:
            (out / f"{stem}.ptx").write_text(whole)
            size = len(whole)
    except Exception as error:  # pylint: disable=broad-exception-caught  # Triton raises of all kinds
        where = f"{job['source']}{place_of(error, function)}: {job['kernel']}"
        what = f", as {form['function']}," if form else ""
        said = str(error) if isinstance(error, Refused) else f"does not compile:\n{type(error).__name__}: {error}"
        sys.exit(f"triton: {where}{what} for {job['target']} {said}")
    (out / f"{stem}.ptxas.txt").write_text(f"== {job['name']} for {job['target']}, {size} bytes\n{log}")
    (out / f"{stem}.json").write_text(json.dumps(
        {"parameters": function.arg_names, "maps": any([each.pop("maps") for each in facts.values()]), "forms": facts},
        indent=1, sort_keys=True))


def main():
    """The command line."""
    wheel, out = pathlib.Path(os.path.realpath(sys.argv[1])), pathlib.Path(os.path.realpath(sys.argv[3]))
    job = json.loads(pathlib.Path(sys.argv[2]).read_text())
    sys.path[0] = str(wheel)
    files = note_files_read(wheel, out)
    run(wheel, job, out, sys.argv[4])
    escaped = (re.sub(r"([ #])", r"\\\1", path).replace("$", "$$") for path in sorted(files))
    (out / "read.d").write_text("image: " + " \\\n ".join(escaped) + "\n")


main()
