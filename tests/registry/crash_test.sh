#!/usr/bin/env bash
# kill -9 at every file system call of a publish, with KILN_SHARE=2 at each second one: the registry stays readable and
# shows the old or the new state, whole; a second run then succeeds and gives what an undisturbed one gives. The order of
# the calls is checked too, because a kill is no power cut: bytes are synced before their rename, and
# index.json is renamed last.
#   crash KILN_REGISTRY_BINARY WRITE_FIXTURE
set -euo pipefail
kiln_registry=$1
command -v strace >/dev/null || { echo "skipped: strace is not installed"; exit 77; }
strace -f -o /dev/null true 2>/dev/null || { echo "skipped: strace may not trace here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$2" "$work"

fail() { echo "FAILED: $*"; exit 1; }
index_of() {  # the line of the version, or nothing where nothing is published; a reader must not fail
  "$kiln_registry" list --registry "$1" >"$work/list" 2>/dev/null || { echo "unreadable"; return; }
  grep '^tiny-op@1' "$work/list" || true
}

"$kiln_registry" publish --quiet --registry "$work/before" "$work/one" >/dev/null
cp -a "$work/before" "$work/after"
strace -f -y -o "$work/trace" -e trace=fsync,rename,renameat,renameat2 \
  "$kiln_registry" publish --quiet --registry "$work/after" "$work/two" >/dev/null
old=$(index_of "$work/before")
new=$(index_of "$work/after")
[ "$old" != "$new" ] || fail "the second publish changed nothing"

python3 - "$work/trace" <<'CHECK'
import re, sys
synced, renamed = set(), []
for line in open(sys.argv[1]):
    if match := re.search(r'fsync\(\d+<(.*?)>\) += 0', line):
        synced.add(match[1])
    elif match := re.search(r'rename\w*\(.*?"(.*?)", .*?"(.*?)".*\) += 0', line):
        assert match[1] in synced, f"renamed before it was synced: {match[1]}"
        if renamed:
            folder = renamed[-1].rsplit("/", 1)[0]
            assert folder in synced, f"not synced after a rename into it: {folder}"
        synced.discard(match[2].rsplit("/", 1)[0])
        renamed.append(match[2])
assert renamed[-1].endswith("/index.json"), renamed
assert len(renamed) == 2 * 3 + 1 + 1, renamed  # 3 blobs a variant, the index, index.json
assert renamed[-1].rsplit("/", 1)[0] in synced, "the folder of index.json was not synced"
CHECK

kills=0
share=${KILN_SHARE:-1}
[[ ${KILN_EXHAUSTIVE:-0} == 0 ]] || share=1
for base in before empty; do
  [ $base = before ] && first=1 || first=$share
  for call in mkdir write fchmod fsync rename; do
    for count in $(seq "$first" "$share" 200); do
      registry=$work/killed
      rm -rf "$registry"
      mkdir "$registry"
      [ "$base" = empty ] || cp -a "$work/before/." "$registry"
      code=0
      # In a shell of its own, whose word "Killed" is not of interest.
      (
        strace -f -o /dev/null -e trace="$call" -e inject="$call:signal=SIGKILL:when=$count" \
          "$kiln_registry" publish --quiet --registry "$registry" "$work/one" "$work/two"
        exit $?
      ) >/dev/null 2>&1 || code=$?
      [ "$code" -ne 0 ] || break  # this call happens fewer times: all of them were tried
      kills=$((kills + 1))
      state=$(index_of "$registry")
      case "$base:$state" in
        before:"$old" | before:"$new" | empty: | empty:"$new") ;;
        *) fail "killed at $call $count on $base: the registry shows '$state'" ;;
      esac
      "$kiln_registry" check --quiet --registry "$registry" >"$work/check" ||
        { [ "$base:$state" = empty: ] && grep -q 'nothing is published in it' "$work/check"; } ||
        fail "killed at $call $count on $base: $(cat "$work/check")"
      "$kiln_registry" publish --quiet --registry "$registry" "$work/one" "$work/two" >/dev/null ||
        fail "killed at $call $count on $base: a second run fails"
      "$kiln_registry" check --quiet --registry "$registry" >"$work/check" ||
        fail "killed at $call $count on $base, then run again: $(cat "$work/check")"
      [ "$(index_of "$registry")" = "$new" ] ||
        fail "killed at $call $count on $base, then run again: shows another index"
      [ -z "$(ls -A "$registry/tiny-op/.ingest")" ] || fail "leftovers after a second run"
    done
  done
done
[ "$kills" -gt 20 ] || fail "only $kills kills hit the publish"
echo "crash: $kills kills, each left a readable registry, and the next run completed it"
