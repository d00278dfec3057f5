#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes few translation units of many sources for clang-tidy: lint_batches.py [--since COMMIT] BUILD_DIR

Most of clang-tidy's time goes into walking the headers, once for each source. So sources whose flags go
together become one: a file that includes them, BUILD_DIR/lint/batch-NN.cpp, with a compile_commands.json
beside it, which has the sources too. Prints the batches, those that take longest first.

Sources stay apart whose local names clash, as far as a look at the text says; what slips through does
not compile, and ci/lint then reads each source of that batch alone. What clang-tidy looks for in the
main file alone, unused using declarations and namespace aliases, is looked for here.

With --since, of the sources that changed since then, and of one that includes each changed header. Then
BUILD_DIR/lint/alone has the commands that compile each changed source, and no other with it.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

MOST = 16  # sources of a batch: more save little, and two cores want some batches each

DEFINED = re.compile(r"^(?:(?:struct|class|enum class|enum|union|using)\s+(\w+)|[\w\[].*?(?<![\w:])(\w+)\s*[(={;\[])")
SHORTENED = re.compile(r"^\s*(?:using (?:\w+::)+(\w+);|namespace (\w+) = [^;]*;)", re.M)


def local_names(text):
    """What the text defines in its anonymous namespaces; the house style does not indent it."""
    names, inside = set(re.findall(r"^int (main)\(", text, re.M)), False
    for line in text.splitlines():
        if line == "namespace {":
            inside = True
        elif line.startswith("}  // namespace"):
            inside = False
        elif inside and not line.startswith(("template", "namespace ")):
            found = DEFINED.match(line)
            names |= {found[1] or found[2]} if found else set()
    return names


def called_names(text):
    """What the text calls without saying whose it is."""
    return set(re.findall(r"(?<![\w.:>])(\w+)\(", re.sub(r"//.*", "", text)))


def unused(text):
    rest = re.sub(r"//.*", "", SHORTENED.sub("", text))
    for found in SHORTENED.finditer(text):
        name = found[1] or found[2]
        if not re.search(rf"\b{name}\b", rest):
            yield name


def compiled_sources(build):
    """Each source and its command, also where CMake compiles several as one."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        sources = [entry["file"]]
        if "/Unity/unity_" in entry["file"]:
            text = pathlib.Path(entry["file"]).read_text(encoding="utf-8")
            sources = re.findall(r'^#include "(.*)"', text, re.M)
        for source in sources:
            yield os.path.relpath(source), entry


def git(*words):
    return subprocess.check_output(["git", *words], text=True).split()


def changed_sources(since, compiled):
    """The sources that changed, and one for each changed header: its own where there is one."""
    changed = set(git("diff", "--name-only", since))
    sources = {path for path in compiled if path in changed}
    for header in sorted(path for path in changed if path.endswith((".hpp", ".h"))):
        name = re.compile(rf'#include ["<](?:.*/)?{re.escape(os.path.basename(header))}[">]')
        readers = [path for path in sorted(compiled) if name.search(pathlib.Path(path).read_text(encoding="utf-8"))]
        own = [path for path in readers if path.removesuffix(".cpp") == os.path.splitext(header)[0]]
        if not sources & set(readers):
            sources |= set((own or readers)[:1])
    return sources


def flags_of(entry):
    """The compiler and its flags, without what starts it and without the precompiled header."""
    command = shlex.split(entry["command"])
    flags = command[os.path.basename(command[0]) == "ccache":command.index("-o")]
    precompiled = ("-Xclang", "-include", "-include-pch", "-Winvalid-pch")
    return [flag for flag in flags if flag not in precompiled and "/cmake_pch." not in flag]


def alone(path, entry):
    """The shell's command that compiles a source and writes nothing."""
    command = shlex.join([*flags_of(entry), "-fsyntax-only", os.path.abspath(path)])
    return f"cd {shlex.quote(entry['directory'])} && {command}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--since", metavar="COMMIT")
    parser.add_argument("build", type=pathlib.Path)
    arguments = parser.parse_args()
    build = arguments.build
    folder = (build / "lint").absolute()
    folder.mkdir(exist_ok=True)
    (folder / "alone").unlink(missing_ok=True)
    tracked = set(git("ls-files", "*.cpp"))
    compiled = [(path, entry) for path, entry in compiled_sources(build) if path in tracked]
    if arguments.since:
        wanted = changed_sources(arguments.since, {path for path, _ in compiled})
        compiled = [(path, entry) for path, entry in compiled if path in wanted]
        (folder / "alone").write_text("".join(alone(*each) + "\n" for each in dict(compiled).items()))
    places = {}  # of a source: the folder of its command, its flags but these: macros and include folders
    for path, entry in compiled:
        # Not the tests: they are most of the time and the least of the findings. Most sources of packages
        # go through zig and NVRTC alone.
        if "tests/" not in path and path not in places:
            flags = [f for f in flags_of(entry) if f not in ("-fPIC", "-fPIE")]
            own = [f for f in flags if f.startswith(("-D", "-I"))]
            shared = tuple(f for f in flags if f not in own)
            places[path] = (entry["directory"], shared, path.startswith("packages/")), own

    texts = {path: pathlib.Path(path).read_text(encoding="utf-8") for path in places}
    idle = [f"{path}: '{name}' is not used" for path in sorted(places) for name in unused(texts[path])]
    if idle:
        sys.exit("\n".join(idle))
    local = {path: local_names(text) for path, text in texts.items()}
    called = {path: called_names(text) | local[path] for path, text in texts.items()}

    def clash(one, other):
        macros = dict(f[2:].split("=", 1) for f in places[one][1] if f.startswith("-D") and "=" in f)
        return (local[one] & called[other] or local[other] & called[one] or
                any(macros.get(name, value) != value for name, _, value in
                    (f[2:].partition("=") for f in places[other][1] if f.startswith("-D"))))

    groups = collections.defaultdict(list)
    for path in sorted(places):
        group = groups[places[path][0]]
        # Those that read CLI11, the longest header to walk, together.
        heavy = "CLI/CLI.hpp" in texts[path]
        for is_heavy, batch in group:
            if heavy == is_heavy and len(batch) < MOST and not any(clash(path, other) for other in batch):
                batch.append(path)
                break
        else:
            group.append((heavy, [path]))
    batches = [(*batch, place) for place, group in groups.items() for batch in group]
    batches.sort(key=lambda batch: (batch[0], len(batch[1])), reverse=True)

    for old in folder.glob("batch-*.cpp"):
        old.unlink()
    commands = [{"directory": directory, "file": os.path.abspath(path),
                 "command": shlex.join([*flags, *own, "-c", os.path.abspath(path)])}
                for path, ((directory, flags, _), own) in places.items()]
    for number, (_, paths, (directory, flags, _)) in enumerate(batches):
        own = dict.fromkeys(f for path in paths for f in places[path][1])
        file = folder / f"batch-{number:02}.cpp"
        file.write_text("".join(f'#include "{os.path.abspath(path)}"  // NOLINT\n' for path in paths))
        commands.append({"directory": directory, "file": str(file),
                         "command": shlex.join([*flags, *own, "-c", str(file)])})
        print(file)
    (folder / "compile_commands.json").write_text(json.dumps(commands, indent=1))


if __name__ == "__main__":
    main()
