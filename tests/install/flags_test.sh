#!/usr/bin/env bash
# An optimised build is hardened without being told to, every source and every link of it; one for debugging is not.
# Only configures; tests/install/hardened.sh looks at what was built.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "flags: $*" >&2; exit 1; }

# lacking TYPE WORD LINES-OF FILE: how many of the file's lines that match have no such word.
lacking() {
  local lines
  lines=$(grep -E "$3" "$work/$1/$4") || fail "$1: no line of $4 matches $3"
  grep -cvF -e "$2" <<<"$lines" || true
}
for type in Release RelWithDebInfo Debug; do
  cmake -S "$source" -B "$work/$type" -G Ninja -DCMAKE_BUILD_TYPE=$type -DKILN_BUILD_TESTS=OFF >/dev/null
  words=(-fstack-protector-strong -fstack-clash-protection -D_FORTIFY_SOURCE=3 -D_GLIBCXX_ASSERTIONS)
  [ "$(uname -m)" != x86_64 ] || words+=(-fcf-protection=full)
  for word in "${words[@]}"; do
    case $type/$(lacking $type "$word" '"command":' compile_commands.json) in
      Debug/0) fail "Debug: every source has $word, which wants an optimised build" ;;
      Debug/* | Rel*/0) ;;
      *) fail "$type: a source is compiled without $word, which loader/hardening.cmake has" ;;
    esac
  done
  for word in -z,relro,-z,now --build-id; do
    [ "$(lacking $type $word '^  LINK_FLAGS = .' build.ninja)" = 0 ] || [ $type = Debug ] ||
      fail "$type: a link is without $word"
  done
done
echo "flags: optimised builds are hardened"
