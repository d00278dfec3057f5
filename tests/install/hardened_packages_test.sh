#!/usr/bin/env bash
# hardened_packages KERNELS: every library of every package is linked as loader/hardening.cmake says, whichever compiler
# made it; and hardened.sh sees one that is not. Exit status 77: nothing was built there.
set -euo pipefail
hardened=$(cd "$(dirname "$0")" && pwd)/hardened.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "hardened_packages: $*" >&2; exit 1; }
mapfile -t libraries < <(find "$1" -name 'lib*.so' 2>/dev/null | sort)
[ "${#libraries[@]}" -gt 0 ] || { echo "skipped: no library below $1"; exit 77; }
"$hardened" --packages "${libraries[@]}"

echo 'int answer(void) { return 42; }' >"$work/loose.c"
cc -shared -fPIC -Wl,-z,norelro,-z,lazy,-z,execstack,-rpath,/tmp,--build-id=none -fcf-protection=none "$work/loose.c" -o "$work/loose.so"
if "$hardened" --packages "$work/loose.so" >"$work/said"; then fail "a library without any of it passes"; fi
for word in 'read-only relocations' 'immediate binding' 'stack that is not executable' "system's rules" 'build id' \
  'stack protector' 'control flow protection'; do
  grep -q "$word" "$work/said" || fail "nothing is said of: $word"
done
