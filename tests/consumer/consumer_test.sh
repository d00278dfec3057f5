#!/usr/bin/env bash
# run BUILD_DIR: installs Kiln from its build folder into a prefix of its own and, knowing only
# that prefix, builds and runs the C++ example, the C consumer, a project that locks its kernels, and one that
# compiles against headers out of a registry. Wants KILN_REGISTRY and KILN_TOOLCHAINS.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export KILN_CACHE=$work/cache

cmake --install "$build" --prefix "$work/prefix" >/dev/null
for forbidden in json.hpp manifest.hpp cache.hpp target.hpp resolve.hpp; do
  if find "$work/prefix/include" -name "$forbidden" | grep -q .; then
    echo "consumer: the private header $forbidden was installed" >&2
    exit 1
  fi
done

cmake -S "$source/packages/geglu-mlp/example" -B "$work/example" -G Ninja \
  -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$work/example"
"$work/example/geglu_mlp_example" 64 96 160

cmake -S "$source/tests/consumer" -B "$work/c" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/c"
library=$("$work/prefix/bin/kiln" path geglu-mlp@1)
"$work/c/c_consumer" "$library"

# A project that states its kernels once: nothing works frozen before it has locked and pre-fetched.
project=$work/required
cp -r "$source/tests/consumer/required" "$project"
cmake -S "$project" -B "$project/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$project/build"
export KILN_CACHE=$work/frozen KILN_OVERRIDE_SM="" KILN_OVERRIDE_CUDA=""
frozen() { env -u KILN_REGISTRY KILN_LOCK="$project/kiln.lock" KILN_OFFLINE=1 "$project/build/required_consumer"; }
expect() {
  local code=0
  frozen || code=$?
  [ "$code" -eq "$1" ] || { echo "consumer: exit $code $2, expected $1" >&2; exit 1; }
}
expect 8 "without a lock file"
cmake --build "$project/build" --target kiln-lock
expect 10 "with a lock file and an empty cache"
cmake --build "$project/build" --target kiln-prefetch
expect 0 "when pre-fetched"

# The lock file and the command are where the project's variables say.
elsewhere=$work/elsewhere
mkdir "$elsewhere"
printf '#!/bin/sh\necho "$1" >>"%s"\nexec "%s" "$@"\n' "$elsewhere/asked" "$work/prefix/bin/kiln" >"$elsewhere/its-kiln"
chmod +x "$elsewhere/its-kiln"
cmake -S "$project" -B "$elsewhere/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DKILN_LOCKFILE="$elsewhere/its.lock" -DKILN_EXECUTABLE="$elsewhere/its-kiln" >/dev/null
mv "$project/kiln.lock" "$elsewhere/first.lock"
cmake --build "$elsewhere/build" --target kiln-lock kiln-prefetch >/dev/null
cmp "$elsewhere/its.lock" "$elsewhere/first.lock"
[ ! -e "$project/kiln.lock" ] || { echo "consumer: KILN_LOCKFILE is not where the lock file is" >&2; exit 1; }
[ "$(sort -u "$elsewhere/asked" | xargs)" = "install lock" ] || { echo "consumer: KILN_EXECUTABLE is not what runs" >&2; exit 1; }

# CMake has no custom target in a folder with '#', and lists without escapes: which path it is, is said.
refused() {
  if cmake -S "$project" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" "$@" >"$work/log" 2>&1; then
    echo "consumer: kiln_require takes a path that CMake cannot have: $*" >&2
    exit 1
  fi
  [[ $(tr -s ' \n' '  ' <"$work/log") == *"has one of"*"which CMake cannot have in this path"* ]] || { cat "$work/log" >&2; exit 1; }
}
refused -B "$work/a#b"
refused -B "$work/ab" -DKILN_LOCKFILE="$work/a;b/kiln.lock"

# A third party's package, made here and now: its headers come from a registry, not from Kiln's prefix.
export KILN_CACHE=$work/dev-cache KILN_REGISTRY=$work/registry
kiln=$work/prefix/bin/kiln
maker=$(realpath "$build")/bin/kiln  # an installed Kiln makes no packages
(cd "$work" && "$maker" new row-scale --cpu >/dev/null)
"$maker" build "$work/row-scale" --out "$work/kernels" --only cpu-x86-64-v3 >/dev/null
"$maker" registry publish --registry "$KILN_REGISTRY" "$work/kernels/row-scale" --allow-untested '*' >/dev/null
rm -r "$work/row-scale" "$work/kernels"
project=$work/dev
cp -r "$source/tests/consumer/dev" "$project"
configure() { cmake -S "$project" -B "$project/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" "$@"; }
configure >/dev/null
cmake --build "$project/build"
"$project/build/dev_consumer"
include=$("$kiln" path --dev row-scale@1)
grep -q 'struct Forward ' "$include/kiln/ops/row_scale.hpp"
grep -q 'row-scale' "$include/../CARD.md"
# Held to a lock file: with it the project is configured from the cache alone, and not from changed headers.
cmake --build "$project/build" --target kiln-lock >/dev/null
KILN_OFFLINE=1 configure >/dev/null
chmod u+w "$include/kiln/ops/row_scale.hpp"
echo '#error changed' >>"$include/kiln/ops/row_scale.hpp"
if configure >"$work/log" 2>&1; then
  echo "consumer: changed headers were taken" >&2
  exit 1
fi
grep -q 'verify row-scale@1 dev' "$work/log"
# A lock file with git's marks of a conflict is not none; and a prefix without the command says what is missing.
echo '<<<<<<< HEAD' >"$project/kiln.lock"
if configure >"$work/log" 2>&1; then
  echo "consumer: headers were taken beside a lock file that cannot be read" >&2
  exit 1
fi
grep -q "kiln.lock" "$work/log"
rm -r "$project/kiln.lock" "$project/build" "$kiln"
if configure -DKILN_EXECUTABLE= >"$work/log" 2>&1; then
  echo "consumer: headers came from a registry without the command" >&2
  exit 1
fi
[[ $(tr -s ' \n' '  ' <"$work/log") == *"the command kiln is not found"* ]]  # CMake breaks lines
echo "consumer: the C++ example and the C program work from an installed prefix"
