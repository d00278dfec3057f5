#!/usr/bin/env bash
# air_gap: online, then offline by version; locked without a GPU, installed as an H200 would; carried
# as a bundle to a machine whose network namespace is empty; read by skopeo. Wants KILN_BIN and
# KILN_REGISTRY, which holds geglu-mlp@1; exit 77 without root, which an empty namespace needs.
set -euo pipefail
[ "$(id -u)" -eq 0 ] && unshare -n true 2>/dev/null || { echo "skipped: needs root"; exit 77; }
kiln=$KILN_BIN/kiln
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export KILN_OVERRIDE_SM="" KILN_OVERRIDE_CUDA=""
steps=0
step() { steps=$((steps + 1)); echo "air_gap: $1"; }
fail() { echo "air_gap: $1" >&2; exit 1; }
expect() {  # CODE COMMAND…
  local want=$1 code=0
  shift
  "$@" >out 2>err || code=$?
  [ "$code" -eq "$want" ] || { cat out err >&2; fail "exit $code from $*, expected $want"; }
}
cut_off() { unshare -n env KILN_OFFLINE=1 "$@"; }

step "online, then offline by version, with no network there"
export KILN_CACHE=$work/first
expect 10 cut_off "$kiln" install geglu-mlp@1
expect 0 "$kiln" install -q geglu-mlp@1
expect 0 cut_off "$kiln" install geglu-mlp@1
expect 0 cut_off "$kiln" doctor geglu-mlp@1

step "locked twice without a GPU: the same bytes"
expect 0 "$kiln" lock geglu-mlp@1
expect 0 env KILN_CACHE="$work/other" "$kiln" lock geglu-mlp@1 --lock again.lock
cmp kiln.lock again.lock || fail "two locks of one registry differ"
expect 0 "$kiln" lock --check
expect 8 "$kiln" install --locked geglu-mlp@99

step "what an H200 takes, from the lock: by its facts file, and as it would itself"
h200=(env KILN_OVERRIDE_SM=9.0 KILN_OVERRIDE_CUDA=13.0 KILN_CACHE="$work/h200")
"${h200[@]}" "$kiln" host geglu-mlp@1 --json >h200.json
expect 0 "$kiln" install -q --locked --host h200.json
grep -q sm_90a out || fail "the facts of an H200 got $(cat out)"
expect 0 "${h200[@]}" "$kiln" install -q --locked
grep -q sm_90a out || fail "an H200 got $(cat out)"
expect 0 "${h200[@]}" "$kiln" install --frozen

step "a bundle: reproducible, its index the registry's, read by skopeo"
expect 0 "$kiln" bundle create -q --locked --all-variants -o b.tar
expect 0 env KILN_CACHE="$work/other" "$kiln" bundle create -q --locked --all-variants -o again.tar
cmp b.tar again.tar || fail "two bundles of one lock differ"
index=$(grep -A1 '"index"' kiln.lock | grep -o 'sha256:[0-9a-f]*')
if command -v skopeo >/dev/null; then
  found=sha256:$(skopeo inspect --raw oci-archive:b.tar:geglu-mlp:1 | sha256sum | cut -d' ' -f1)
  [ "$found" = "$index" ] || fail "skopeo reads index $found, the lock says $index"
  skopeo copy -q --all --preserve-digests oci-archive:b.tar:geglu-mlp:1 "oci:$work/copy:1"
  skopeo copy -q --all --preserve-digests "oci:$work/copy:1" oci-archive:skopeo.tar:1
fi

step "carried to where there is no network: by version, by lock, as an H200"
export KILN_CACHE=$work/gap
expect 0 cut_off "$kiln" bundle install b.tar
expect 0 cut_off "$kiln" install geglu-mlp@1
expect 0 cut_off "$kiln" doctor geglu-mlp@1
expect 0 cut_off env KILN_CACHE="$work/gap2" "$kiln" bundle install again.tar --locked
expect 0 cut_off env KILN_CACHE="$work/gap3" KILN_OVERRIDE_SM=9.0 KILN_OVERRIDE_CUDA=13.0 \
  "$kiln" bundle install b.tar
grep -q sm_90a out || fail "an H200 got $(cat out) of the bundle"
expect 0 "$kiln" bundle create -q --locked --host h200.json -o h200.tar
expect 0 cut_off env KILN_CACHE="$work/gap6" KILN_OVERRIDE_SM=9.0 KILN_OVERRIDE_CUDA=13.0 \
  "$kiln" bundle install h200.tar
grep -q sm_90a out || fail "an H200 got $(cat out) of its own bundle"
[ ! -f skopeo.tar ] || expect 0 cut_off env KILN_CACHE="$work/gap4" "$kiln" bundle install skopeo.tar
expect 0 "$kiln" bundle create -q --variant cpu-armv8-a geglu-mlp@1 -o arm.tar
expect 4 cut_off env KILN_CACHE="$work/gap5" "$kiln" bundle install arm.tar
echo "air_gap: $steps steps hold"
