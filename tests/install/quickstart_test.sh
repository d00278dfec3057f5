#!/usr/bin/env bash
# quickstart TOOLCHAINS: ci/quickstart in a fresh clone, for a user with an empty HOME. It builds, and ends with the
# example; what it prints is a screen or two; nothing is written outside the clone, which as root a file system that is
# elsewhere read-only proves. Then a shell that reads build/env has the command, the registry and the trust in it, and
# outside of the clone what a package's author needs.
# The compilers for kernels are copied from TOOLCHAINS, where they are pinned the same: nothing is fetched.
# Exit status 77: they are not there, or this tree is not git's.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
toolchains=$1
for needed in "$toolchains"/{zig,bin,cuda-11.8} "$source/.git"; do
  [ -e "$needed" ] || { echo "skipped: $needed is missing"; exit 77; }
done
fail() { echo "quickstart: $*" >&2; exit 1; }
if [ "${2:-}" != inside ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/clone" "$work/home"
  # What is tracked, as it is in this tree.
  git -C "$source" ls-files -z | tar -C "$source" --null --no-recursion --files-from=- -cf - 2>/dev/null | tar -C "$work/clone" -xf -
  mkdir -p "$work/clone/build/toolchains" "$work/clone/build/tmp"
  cp -r "$toolchains"/{zig,bin,cuda-11.8} "$work/clone/build/toolchains"
  clean=(env -i PATH="$PATH" HOME="$work/home" TMPDIR="$work/clone/build/tmp" LANG="${LANG:-C.UTF-8}")
  if unshare --mount true 2>/dev/null; then
    "${clean[@]}" unshare --mount --propagation private "$0" "$toolchains" inside "$work"
  else
    "${clean[@]}" "$0" "$toolchains" inside "$work"
  fi
  exit
fi
work=$3
cd "$work/clone"
if mount --bind "$work" "$work" 2>/dev/null; then
  # Each file system but the clone's and what the kernel makes is read-only.
  while read -r place; do
    case $place in
      "$work" | /proc* | /sys* | /dev*) ;;
      *) mount -o remount,bind,ro "$place" 2>/dev/null || true ;;
    esac
  done < <(findmnt --noheadings --list --output TARGET)
  cd "$work/clone"
  if touch "$source/written" 2>/dev/null; then rm "$source/written"; fail "this file system is not read-only"; fi
fi
if ci/quickstart 64 wide >"$work/said" 2>&1 || [ -e build/env ]; then fail "a size that is no number is found after the build"; fi
ci/quickstart 64 96 160 >"$work/said" 2>&1 || fail "exit status $?: $(tail -n 40 "$work/said")"
[ "$(wc -l <"$work/said")" -lt 100 ] || fail "it prints $(wc -l <"$work/said") lines"
for said in 'relative L2 against fp64' '^quickstart: done in' 'ci/quickstart --all'; do
  grep -q -- "$said" "$work/said" || fail "it does not say '$said': $(cat "$work/said")"
done
[ -z "$(ls -A "$work/home")" ] || fail "it wrote into HOME: $(find "$work/home")"
[ "$(find . -path ./build -prune -o -newer build/env -type f -print)" = "" ] ||
  fail "it wrote beside build/: $(find . -path ./build -prune -o -newer build/env -type f -print)"
# shellcheck source=/dev/null
. build/env
kiln resolve geglu-mlp@1 --device cpu | grep -q '^> cpu-' || fail "a shell with build/env does not resolve"
# A package outside of the clone: the compilers, and the prefix in which CMake finds Kiln.
mkdir "$work/elsewhere"
cd "$work/elsewhere"
kiln new row-scale --cpu >/dev/null
kiln build ./row-scale --here --no-check -q >/dev/null || fail "a shell with build/env does not build a package elsewhere"
cmake -S row-scale/tests -B build/check >/dev/null || fail "a shell with build/env does not find Kiln for CMake"
echo "quickstart: $(wc -l <"$work/said") lines, nothing outside of the clone"
