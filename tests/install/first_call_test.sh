#!/usr/bin/env bash
# What each script of ci/ says that is called first, in a clone without a build folder: it makes what it needs, or says what
# to do. Tools that would work for minutes have stand-ins. Exit status 77: this tree is not git's.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
[ -e "$source/.git" ] || { echo "skipped: $source is not git's"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/it's" "$work/stubs" "$work/temporary"
clone="$work/it's/clone"
mkdir "$clone"
git -C "$source" ls-files -z -- ci 'packages/*/package.json' 'packages/gated-mlp/*.py' 'loader/python/kiln/*.py' 'CMake*' docs/MACHINES.md tests/install/systems.py '*.hpp' |
  tar -C "$source" --null --files-from=- -cf - | tar -C "$clone" -xf -
cd "$clone"
git init -q
git add .
git -c user.name=test -c user.email=test@localhost commit -qm first
unset KILN_BIN
export PATH=$work/stubs:$PATH TMPDIR=$work/temporary KILN_TOOLCHAINS=$work/toolchains

stub() {  # stub NAME SCRIPT
  printf '#!/bin/sh\n%s\n' "$2" >"$work/stubs/$1"
  chmod 0755 "$work/stubs/$1"
}
# says STATUS TEXT COMMAND…
says() {
  local status=0
  "${@:3}" >"$work/said" 2>&1 </dev/null || status=$?
  if [ "$status" != "$1" ] || ! grep -qF -- "$2" "$work/said" || grep -E 'Traceback|unbound variable|No such file' "$work/said"; then
    echo "FAILED: ${*:3} ends with $status, expected $1 and '$2', and says: $(cat "$work/said")"
    exit 1
  fi
}

for tool in clang-format pyflakes3 mypy shellcheck; do stub $tool 'exit 0'; done
stub cmake '[ "$1 $2" = "--preset dev" ] && mkdir -p build/dev && touch build/dev/compile_commands.json'
stub run-clang-tidy '[ -e "$2/compile_commands.json" ]'
git rm -q --cached -r . && git add ci CMakeLists.txt loader  # without bytes that are none of lint's
says 2 'nowhere has no compile_commands.json; configure it' ci/lint nowhere
says 0 'find nothing' ci/lint
stub git 'echo "fatal: git refuses" >&2; exit 128'
says 128 'fatal: git refuses' ci/lint
rm "$work/stubs/git"
mkdir "$work/few"
for tool in bash dirname clang-format; do ln -s "$(PATH=$work/stubs:$PATH command -v $tool)" "$work/few/"; done
says 2 'no run-clang-tidy; run ci/setup test' env PATH="$work/few" ci/lint

says 1 'has no packages to test: run ci/package first' ci/package --test
says 1 'has no packages for this machine. Run ci/package' tests/install/systems.py "$work/few"
says 2 'wheels is none of debs, tar, wheel, container' tests/install/systems.py "$work/few" --ways debs,wheels
says 2 'usage: ci/fuzz' ci/fuzz --preset
says 2 'wants a folder that kiln build wrote, and nothing is none' ci/reproducible --against
says 2 'and nowhere is none' ci/reproducible --against nowhere rms-norm
says 77 'run ci/toolchains' ci/reproducible
says 2 'there is no packages/rms-norm/published/99.json' ci/published rms-norm 99
says 1 'nothing-there does not run' ci/machines --kiln-build "$work/nothing-there"
says 1 'ci/record_quickstart NOTES BUILD_DIR OUT' ci/record_quickstart
says 2 'ci/gpu pack BUILD_DIR REGISTRY FILE' ci/gpu pack
says 2 'ci/gpu run FILE OUT' ci/gpu run
says 2 'gpu: nowhere/bin/kiln is not there; ci/quickstart --all makes both' ci/gpu pack nowhere packages "$work/tar"
mkdir -p build/bin packages/gated-mlp/{bench,tests}
cp /bin/true build/bin/kiln
for package in packages/*/package.json; do
  package=$(basename "${package%/*}")
  cp /bin/true "build/bin/${package//-/_}_check"
done
stub ldd 'echo "libx.so => /bin/true (0x0)"'
says 0 "$work/tar" ci/gpu pack build packages "$work/tar"
[ -z "$(ls -A "$TMPDIR")" ] || { echo "FAILED: ci/gpu leaves $(ls "$TMPDIR")"; exit 1; }
printf '#!/bin/sh\necho "setup: told"\nexit 1\n' >ci/setup
says 1 'setup: told' ci/docs
says 1 'setup: told' ci/quickstart
(set -u && . build/env && [ "$KILN_SOURCE" = "$clone" ]) || { echo "FAILED: build/env: $(cat build/env)"; exit 1; }
echo "first call: each script of ci/ makes what it needs or says what to do"
