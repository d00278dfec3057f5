#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles or runs every code block of a Markdown file.

check.py README.md --build BUILD_DIR      wants KILN_REGISTRY, a registry that holds geglu-mlp@1

    c         compiled as the body of a C11 function, against kiln.h
    cpp       compiled against the headers: as a file if it has an #include of its own main(), else as
              the body of a function that has the names a reader would have in scope
    cmake     configured and built as the project of a small consumer, against an installed prefix
    python    run with the package kiln of this tree; with the word "torch", where there is PyTorch
    sh        run with bash -e, in order, with a cache and registry of its own: in Kiln's tree or, with the
              word "project", in the folder of some user's project
    json      parsed; with the word "settings", kiln reads it as its settings file
    text, console   what a program prints: not checked here
    yaml      of DEPLOYMENT.md: tests/loader/owners_test reads them

A block whose info string has the word "ci" is one of the commands that CI itself is running. From one that reads
build/env on, there is KILN_SOURCE; no block has a variable that only tests set.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
ONLY_TESTS = ("KILN_BIN", "KILN_KERNELS", "KILN_SOURCE", "KILN_TOOLCHAINS", "KILN_WHOLE_MATRIX")

FRAGMENT = """
#include <kiln/kiln.hpp>
#include <kiln/layers/geglu_mlp.hpp>
#include <cstdio>
#include <string>
%(includes)s
[[maybe_unused]] static void fragment(kiln::Tensor x, kiln::Tensor residual, kiln::Tensor y,
    kiln::Tensor w_gate, kiln::Tensor w_up, kiln::Tensor w_down, kiln::Workspace workspace, CUstream_st* stream, void* data,
    kiln::Tensor gate_out, kiln::Tensor up_out, kiln::Tensor grad_y, kiln::Tensor grad_x,
    kiln::Tensor grad_gate, kiln::Tensor grad_up, kiln::Tensor grad_down,
    kiln::Tensor main_gate, kiln::Tensor main_up, kiln::Tensor main_down) {
  (void)x, (void)residual, (void)y, (void)w_gate, (void)w_up, (void)w_down, (void)workspace, (void)stream, (void)data;
  (void)gate_out, (void)up_out, (void)grad_y, (void)grad_x, (void)grad_gate, (void)grad_up, (void)grad_down;
  (void)main_gate, (void)main_up, (void)main_down;
%(body)s
}
"""


def blocks(text):
    for match in re.finditer(r"^```(\w+)([^\n]*)\n(.*?)^```$", text, re.M | re.S):
        line = text.count("\n", 0, match.start()) + 1
        yield line, match[1], match[2].split(), match[3]


def compile_cpp(code, work):
    if "int main(" not in code:
        includes = "".join(line + "\n" for line in code.splitlines() if line.startswith("#"))
        body = "".join(line + "\n" for line in code.splitlines() if not line.startswith("#"))
        code = FRAGMENT % {"includes": includes, "body": body}
    path = work / "block.cpp"
    path.write_text(code)
    package_includes = [f"-I{p}" for p in SOURCE.glob("packages/*/include")]
    if "#include <cuda_runtime_api.h>" in code:  # of the toolkit that ci/toolchains brought
        package_includes += [f"-isystem{p}" for p in sorted(SOURCE.glob("build/toolchains/cuda-*/include"))[-1:]]
    subprocess.run(
        ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
         f"-I{SOURCE}/loader/include", *package_includes, str(path)], check=True)


def compile_c(code, work):
    path = work / "block.c"
    path.write_text("#include <kiln/kiln.h>\n#include <stdio.h>\nvoid fragment(void);\n"
                    "void fragment(void) {\n" + code + "}\n")
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                    f"-I{SOURCE}/loader/include", str(path)], check=True)


def install_prefix(work, build):
    prefix = work / "kiln/build/prefix"
    if not prefix.exists():
        subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True,
                       stdout=subprocess.DEVNULL)
    return prefix


def build_cmake(code, work, build, environment):
    prefix = install_prefix(work, build)
    project = work / "project"
    project.mkdir(exist_ok=True)
    lists = project / "CMakeLists.txt"  # the blocks of a file are one project, which grows
    before = lists.read_text() if lists.exists() else (
        "cmake_minimum_required(VERSION 3.25)\nproject(readme LANGUAGES C CXX)\n"
        "set(CMAKE_CXX_STANDARD 20)\nadd_executable(my_program main.cpp)\n")
    lists.write_text(before + code)
    linked = "target_link_libraries(my_program" in before + code
    (project / "main.cpp").write_text("#include <kiln/kiln.hpp>\n" * linked + "int main() {}\n")
    shutil.copytree(work / "my_project", project, dirs_exist_ok=True)  # the files of earlier blocks
    subprocess.run(["cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={prefix}"],
                   check=True, stdout=subprocess.DEVNULL, env=environment)
    subprocess.run(["cmake", "--build", project / "build"], check=True, stdout=subprocess.DEVNULL)


def run_sh(code, environment, folder, work):
    code = code.replace("/tmp/", f"{work}/")  # a reader's scratch folder; each run has its own
    subprocess.run(["bash", "-euo", "pipefail", "-c", code], check=True, cwd=folder, env=environment,
                   stdout=subprocess.DEVNULL)


def python_for(words):
    """A Python that has what the block imports, or None: numpy, or torch where the block says so."""
    needed, python = ("torch", pathlib.Path("/usr/bin/python3")) if "torch" in words else (
        "numpy", SOURCE / "build/python/bin/python3")
    if not os.access(python, os.X_OK):  # another user's may be there, behind a folder of theirs
        return None
    imports = subprocess.run([python, "-c", f"import {needed}"], check=False, stderr=subprocess.DEVNULL)
    return python if imports.returncode == 0 else None


def run_python(code, words, work, build, environment):
    library = pathlib.Path(build).resolve() / "loader/libkiln.so"
    environment = dict(environment, PYTHONPATH=str(SOURCE / "loader/python"), KILN_LIBRARY=str(library),
                       PYTHONDONTWRITEBYTECODE="1")
    subprocess.run([python_for(words), "-c", code], check=True, cwd=work, env=environment, stdout=subprocess.DEVNULL)


def read_settings(code, work, environment):
    path = work / "settings.json"
    path.write_text(code)
    subprocess.run(["kiln", "resolve", "geglu-mlp@1", "--device", "cpu"], check=True,
                   env=dict(environment, KILN_CONFIG=str(path)), stdout=subprocess.DEVNULL)


def file_of(words):
    """Where the project has this block, or None."""
    return next((word.removeprefix("file=") for word in words if word.startswith("file=")), None)


def write_file(code, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)


def check_block(language, words, code, work, build, environment):
    """Throws what says why it fails."""
    project = work / "my_project"
    if file_of(words) is not None:
        write_file(code, project / file_of(words))
    elif language == "python":
        run_python(code, words, work, build, environment)
    elif language == "cpp":
        compile_cpp(code, work)
    elif language == "c":
        compile_c(code, work)
    elif language == "cmake":
        build_cmake(code, work, build, environment)
    elif language == "sh":
        if "KILN_SOURCE" in code:
            install_prefix(work, build)
        run_sh(code, environment, project if "project" in words else SOURCE, work)
    elif language == "json":
        json.loads(code)
        if "settings" in words:
            read_settings(code, work, environment)
    else:
        raise ValueError(f"no check for the language {language!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--build", required=True, help="build folder of Kiln")
    arguments = parser.parse_args()

    counts = {}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "my_project").mkdir()
        environment = {name: value for name, value in os.environ.items() if name not in ONLY_TESTS}
        environment.update(KILN_CACHE=str(work / "cache"), XDG_CONFIG_HOME=str(work / "config"),
                           PATH=f"{arguments.build}/bin:{os.environ['PATH']}")
        for line, language, words, code in blocks(arguments.file.read_text()):
            if "ci" in words and "build/env" in code:
                environment["KILN_SOURCE"] = str(work / "kiln")
            if language in ("text", "console", "yaml") or "ci" in words:
                continue
            if language == "python" and python_for(words) is None:
                print(f"{arguments.file}:{line}: skipped: no Python with what it imports; run 'ci/setup test'")
                continue
            try:
                check_block(language, words, code, work, arguments.build, environment)
                counts[language] = counts.get(language, 0) + 1
            except (subprocess.CalledProcessError, ValueError) as error:
                print(f"{arguments.file}:{line}: the {language} block fails: {error}", file=sys.stderr)
                failed += 1
    print(f"{arguments.file.name}: {counts} blocks pass, {failed} fail")
    return 1 if failed or not counts else 0


if __name__ == "__main__":
    sys.exit(main())
