#!/usr/bin/env bash
# kiln-registry as a command: exit codes, stdout against stderr, and JSON that a script can read.
#   command KILN_REGISTRY_BINARY WRITE_FIXTURE
set -euo pipefail
kiln_registry=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$2" "$work"
registry=$work/registry

fail() { echo "FAILED: $*"; exit 1; }
expect() {  # expect CODE COMMAND…: stderr goes to $work/err, stdout to $work/out
  local wanted=$1 code=0
  shift
  "$@" >"$work/out" 2>"$work/err" || code=$?
  [ "$code" -eq "$wanted" ] || { cat "$work/err"; fail "'${*:2}' exits with $code, expected $wanted"; }
}

expect 0 "$kiln_registry" --help
expect 0 "$kiln_registry" publish --help
expect 0 "$kiln_registry" push --help
expect 2 "$kiln_registry"
expect 2 "$kiln_registry" frobnicate
expect 2 "$kiln_registry" publish --registry "$registry"
expect 2 env -u KILN_REGISTRY "$kiln_registry" list
expect 4 "$kiln_registry" list --registry "$registry"
expect 4 env KILN_REGISTRY="$work" "$kiln_registry" list --registry "$registry"  # the option wins
expect 4 "$kiln_registry" publish --registry "$registry" "$work/absent"
[ ! -e "$registry" ] || fail "a refused publish made the registry"

# A result that nobody could read is no success.
expect_full() {
  local code=0
  "$kiln_registry" "$@" >/dev/full 2>"$work/err" || code=$?
  [ "$code" -eq 9 ] || fail "'$* >/dev/full' exits with $code, expected 9: $(cat "$work/err")"
}
expect_full list --json --registry "$work"
expect_full --help
"$kiln_registry" list --json --registry "$work" >&- || fail "a closed stdout is an error"

# A URL is no folder: nothing may be written into ./https:, and nothing said to be published.
cd "$work"
url=https://registry.example.org/kernels
for command in list check "export-static --out $work/www" "push --to $url"; do
  expect 2 "$kiln_registry" $command --registry "$url"
  grep -q "$url: this is a URL, expected a folder.*'kiln registry push --to' take a URL" "$work/err" ||
    fail "'$command' does not say what a URL can be used for: $(cat "$work/err")"
  [ ! -s "$work/out" ] || fail "'$command' of a URL speaks of success: $(cat "$work/out")"
  expect 2 env KILN_REGISTRY="$url" "$kiln_registry" $command
done
expect 2 "$kiln_registry" publish "$work/one" --registry https:/registry.example.org  # a slash short
expect 2 "$kiln_registry" publish "$work/one" --registry http://registry.example.org  # without TLS
expect 2 "$kiln_registry" publish "$work/one" --registry https://user:secret@registry.example.org
! grep -q secret "$work/err" || fail "an error shows a login: $(cat "$work/err")"

expect 2 "$kiln_registry" publish --registry "$registry" --verify "$work/one"
[ ! -e "$registry" ] || fail "a publish that was refused made the registry"
expect 0 "$kiln_registry" publish --registry "$registry" --json "$work/one"
python3 - "$work/out" <<'CHECK'
import json, sys
result = json.load(open(sys.argv[1]))
assert result["schema"] == "kiln.publish/1", result
[package] = result["packages"]
assert package["name"] == "tiny-op" and package["version"] == 1 and package["changed"] is True, package
assert len(package["added"]) == 3 and package["unchanged"] == [], package
CHECK
expect 0 "$kiln_registry" publish --registry "$registry" "$work/one"
grep -q 'nothing to do' "$work/out" || fail "a second publish does not say that it did nothing"
echo '{"schema":"kiln.record/1","hardware":"none","date":"2026-11-21","results":[]}' >"$work/record.json"
expect 0 "$kiln_registry" publish --registry "$work/several" --records "$work/record.json" "$work/one" "$work/two"
grep -q "record $work/record.json counts for nothing here" "$work/err" || fail "a record of nothing: $(cat "$work/err")"
expect 4 "$kiln_registry" publish --registry "$registry" --allow-untested '' "$work/two"
grep -q -- "--allow-untested 'cpu-x86-64-v4,cu12.9-sm_80-x86_64'" "$work/err" || fail "a missing record: $(cat "$work/err")"
expect 0 "$kiln_registry" publish --registry "$registry" --quiet "$work/two"
[ ! -s "$work/err" ] || fail "--quiet writes to stderr: $(cat "$work/err")"
expect 16 "$kiln_registry" publish --registry "$registry" "$work/clash"
[ ! -s "$work/out" ] || fail "an error writes to stdout"
[ "$(grep -o 'sha256:[0-9a-f]\{64\}' "$work/err" | sort -u | wc -l)" -eq 2 ] ||
  fail "a conflict does not name both digests: $(cat "$work/err")"

expect 0 env KILN_REGISTRY="$registry" "$kiln_registry" list --json
python3 - "$work/out" <<'CHECK'
import json, sys
result = json.load(open(sys.argv[1]))
assert result["schema"] == "kiln.registry-list/1", result
[version] = result["versions"]
ids = [variant["id"] for variant in version["variants"]]
assert ids == ["cu12.9-sm_90a-x86_64", "cu12.9-sm_80-x86_64", "cu11.8-compute_80-x86_64",
               "cpu-x86-64-v4", "cpu-x86-64-v3"], ids
assert all(variant["tested"] == "untested" for variant in version["variants"]), version
CHECK
for url in https://registry.example.org http:/one-slash oci:/registry file:///srv/www; do
  expect 2 "$kiln_registry" export-static --registry "$registry" --out "$url"
done
for inside in "$registry" "$registry/www" "$registry/tiny-op/"; do
  expect 2 "$kiln_registry" export-static --registry "$registry" --out "$inside"
done
for prefix in Kernels kernels/ kernels//acme ../kernels /kernels; do
  expect 2 "$kiln_registry" export-static --registry "$registry" --out "$work/prefixed" --prefix "$prefix"
  grep -q "prefix '$prefix' is not a repository name" "$work/err" || fail "another error: $(cat "$work/err")"
  [ ! -e "$work/prefixed" ] || fail "an export wrote below the prefix $prefix"
done
[ ! -e "$registry/nginx.conf" ] || fail "an export wrote into the registry"
[ "$(find . -name '*:*' | wc -l)" -eq 0 ] || fail "a URL became a folder"
expect 0 "$kiln_registry" publish --registry "./a:/b" "$work/one"  # one letter and a dot: a path
expect 0 "$kiln_registry" check --registry "$registry"
grep -q '5 variants' "$work/out" || fail "check reports: $(cat "$work/out")"

grep -q 'all intact, not signed' "$work/out" || fail "check passes for one of signatures: $(cat "$work/out")"

# No registry, and one whose index file went: what is missing is named.
mkdir -p "$work/none" "$work/foreign/doc"
echo text >"$work/foreign/doc/text"
for folder in "$work/none" "$work/foreign"; do
  expect 6 "$kiln_registry" check --registry "$folder"
  grep -q "verify $folder: nothing is published in it, .*; expected a registry" "$work/out" ||
    fail "check of no registry: $(cat "$work/out")"
done
mv "$registry/tiny-op/index.json" "$work/kept.json"
expect 6 "$kiln_registry" check --registry "$registry"
grep -q "$registry/tiny-op/index.json is missing, expected it beside" "$work/out" ||
  fail "check without an index file: $(cat "$work/out")"
mv "$work/kept.json" "$registry/tiny-op/index.json"
expect 0 "$kiln_registry" check --registry "$registry"

blob=$(find "$registry/tiny-op/blobs/sha256" -type f | head -1)
chmod u+w "$blob"
printf x >>"$blob"
expect 6 "$kiln_registry" check --registry "$registry" --json
python3 - "$work/out" "$blob" <<'CHECK'
import json, sys
result = json.load(open(sys.argv[1]))
assert result["schema"] == "kiln.registry-check/1", result
assert any(sys.argv[2] in problem for problem in result["problems"]), result
CHECK

# A disk that is not there to be written: the code of the disk, and nothing half done.
if [ "$(id -u)" -ne 0 ]; then
  mkdir "$work/readonly"
  chmod 0555 "$work/readonly"
  expect 9 "$kiln_registry" publish --registry "$work/readonly" "$work/one"
fi
expect 9 bash -c 'ulimit -f 0; trap "" XFSZ; exec "$0" "$@"' \
  "$kiln_registry" publish --quiet --registry "$work/full" "$work/one"
expect 0 "$kiln_registry" publish --registry "$work/full" "$work/one"
echo "command: exit codes, streams and JSON are as documented"
