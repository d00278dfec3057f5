#!/usr/bin/env bash
# The registry under real tools: nginx serves the exported tree, skopeo reads the layout and the
# server. Every digest must arrive unchanged.
#   serve KILN_REGISTRY_BINARY WRITE_FIXTURE
set -euo pipefail
kiln_registry=$1
PATH=$PATH:/usr/sbin:$(cd "$(dirname "$0")/../.." && pwd)/build/oci-tools
for tool in nginx skopeo curl; do
  command -v "$tool" >/dev/null || { echo "skipped: $tool is not installed"; exit 77; }
done
work=$(mktemp -d)
export HOME=$work  # oras wants one
umask 022  # nginx's workers are another user where the master is root
chmod 0755 "$work"
server=
cleanup() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
fail() { echo "FAILED: $*"; exit 1; }
"$2" "$work"
registry=$work/registry
"$kiln_registry" publish --quiet --registry "$registry" "$work/one" >/dev/null
"$kiln_registry" export-static --quiet --registry "$registry" --out "$work/www" --prefix kernels >/dev/null

start_server() {
  local attempt
  for attempt in 1 2 3 4 5; do
    port=$((20000 + RANDOM % 20000))
    sed "s/listen 127.0.0.1:8080;/listen 127.0.0.1:$port;/" "$work/www/nginx.conf" >"$work/server.conf"
    grep -q ":$port;" "$work/server.conf" || fail "nginx.conf has no listen line to change"
    cat >"$work/nginx.conf" <<CONF
daemon off;
pid $work/nginx.pid;
error_log $work/error.log;
events {}
http {
  access_log off;
  client_body_temp_path $work/t1; proxy_temp_path $work/t2; fastcgi_temp_path $work/t3;
  uwsgi_temp_path $work/t4; scgi_temp_path $work/t5;
  include $work/server.conf;
}
CONF
    nginx -e "$work/error.log" -c "$work/nginx.conf" >"$work/nginx.out" 2>&1 &
    server=$!
    for _ in $(seq 50); do
      curl -sf "http://127.0.0.1:$port/v2/" >/dev/null && return
      kill -0 "$server" 2>/dev/null || break
      sleep 0.1
    done
    kill "$server" 2>/dev/null || true
  done
  cat "$work/error.log" "$work/nginx.out"
  fail "nginx does not start, attempt $attempt"
}
start_server
base=http://127.0.0.1:$port/v2/kernels/tiny-op

index=$("$kiln_registry" list --quiet --registry "$registry" | sed -n 's/^tiny-op@1 //p')
expect_type() {  # expect_type URL-PATH TYPE
  local found
  found=$(curl -sf -o /dev/null -w '%{content_type}' "$base/$1") || fail "$1 is not served"
  [ "$found" = "$2" ] || fail "$1 has type $found, expected $2"
}
expect_type manifests/1 application/vnd.oci.image.index.v1+json
expect_type "manifests/$index" application/vnd.oci.image.index.v1+json
expect_type manifests/1-cu12.9-sm_90a-x86_64 application/vnd.oci.image.manifest.v1+json
expect_type tags/list application/json
while read -r manifest; do
  expect_type "manifests/$manifest" application/vnd.oci.image.manifest.v1+json
  layer=$(curl -sf "$base/manifests/$manifest" | grep -o 'sha256:[0-9a-f]*' | tail -1)
  expect_type "blobs/$layer" application/octet-stream
  [ "sha256:$(curl -sf "$base/blobs/$layer" | sha256sum | cut -d' ' -f1)" = "$layer" ] ||
    fail "blob $layer arrives as other bytes"
  [ "$(curl -s -o /dev/null -w '%{http_code}' -r 5- "$base/blobs/$layer")" = 206 ] ||
    fail "a range of $layer is not served as 206"
done < <(curl -sf "$base/manifests/1" | python3 -c 'import json, sys
for manifest in json.load(sys.stdin)["manifests"]: print(manifest["digest"])')
expect_header() {  # expect_header URL-PATH NAME VALUE [CURL OPTION...]
  local found
  found=$(curl -s -o /dev/null -D - "${@:4}" "$base/$1" | tr -d '\r' | sed -n "s/^$2: //Ip")
  [ "$found" = "$3" ] || fail "$1 has $2 '$found', expected '$3'"
}
for reference in 1 "$index"; do
  expect_header "manifests/$reference" Docker-Content-Digest "$index"
  expect_header "manifests/$reference" Docker-Content-Digest "$index" --head
done
layer=$(curl -sf "$base/manifests/1-cpu-x86-64-v3" | grep -o 'sha256:[0-9a-f]*' | tail -1)
expect_header "blobs/$layer" Docker-Content-Digest "$layer"
expect_header "manifests/1-cpu-x86-64-v3" Docker-Distribution-Api-Version registry/2.0
expect_header manifests/1 Allow "GET, HEAD" -X DELETE
expect_error() {  # expect_error URL-PATH STATUS CODE [CURL OPTION...]
  local found
  found=$(curl -s -w ' %{http_code} %{content_type}' "${@:4}" "$base/$1")
  [[ "$found" == *"\"$3\""*" $2 application/json" ]] || fail "$1 answers $found, expected $2 $3"
}
none=sha256:$(printf '%064d' 0)
expect_error manifests/2 404 MANIFEST_UNKNOWN
expect_error "manifests/$none" 404 MANIFEST_UNKNOWN
expect_error "blobs/$none" 404 BLOB_UNKNOWN
expect_error referrers/sha256:00 400 DIGEST_INVALID
expect_error ../none/tags/list 404 NAME_UNKNOWN
expect_error manifests/1 405 UNSUPPORTED -X PUT -d x
if grep '\[crit\]' "$work/error.log"; then fail "nginx complains"; fi
if oras=$(command -v oras); then  # it believes the header of a HEAD by tag, and nothing else
  [ "$("$oras" resolve --plain-http "127.0.0.1:$port/kernels/tiny-op:1")" = "$index" ] || fail "oras resolves another"
fi
for missing in manifests/2 manifests/sha256:00 blobs/sha256:00 tags/none ../../nginx.conf; do
  [ "$(curl -s --path-as-is -o "$work/body" -w '%{http_code}' "$base/$missing")" = 404 ] ||
    fail "$missing is not a 404"
done

digest_of() { skopeo inspect --raw "${@:2}" "$1" | sha256sum | sed 's/^/sha256:/; s/ .*//'; }
layout=oci:$registry/tiny-op
remote=docker://127.0.0.1:$port/kernels/tiny-op
[ "$(digest_of "$layout:1")" = "$index" ] || fail "skopeo reads another index from the layout"
[ "$(digest_of "$remote:1" --tls-verify=false)" = "$index" ] ||
  fail "skopeo reads another index from nginx"
copy() { skopeo --insecure-policy copy -q --all --preserve-digests "$@" || fail "skopeo copy $*"; }
copy "$layout:1" "oci:$work/copy1:1"
copy --src-tls-verify=false "$remote:1" "oci:$work/copy2:1"
copy --src-tls-verify=false "$remote:1-cpu-x86-64-v3" "oci:$work/copy3:1-cpu-x86-64-v3"
for copied in copy1 copy2; do
  [ "$(digest_of "oci:$work/$copied:1")" = "$index" ] || fail "skopeo changed the index in $copied"
  cmp <(cd "$registry/tiny-op/blobs/sha256" && sha256sum -- * | sort) \
      <(cd "$work/$copied/blobs/sha256" && sha256sum -- * | sort) ||
    fail "$copied has other blobs than the registry"
done
# What a foreign tool wrote is a registry of Kiln as well.
mkdir "$work/foreign"
mv "$work/copy2" "$work/foreign/tiny-op"
"$kiln_registry" check --quiet --registry "$work/foreign" ||
  fail "the copy that skopeo made does not check"

# New variants reach clients of the running server; the index that was replaced stays.
"$kiln_registry" publish --quiet --registry "$registry" "$work/two" >/dev/null
"$kiln_registry" export-static --quiet --registry "$registry" --out "$work/www" --prefix kernels >/dev/null
second=$("$kiln_registry" list --quiet --registry "$registry" | sed -n 's/^tiny-op@1 //p')
[ "$second" != "$index" ] || fail "publish did not change the index"
[ "$(digest_of "$remote:1" --tls-verify=false)" = "$second" ] || fail "nginx serves the old index"
[ "$(digest_of "$remote@$index" --tls-verify=false)" = "$index" ] || fail "the first index is gone"
copy --src-tls-verify=false "$remote:1" "oci:$work/copy4:1"
skopeo list-tags --tls-verify=false "$remote" >"$work/tags"
[ "$(grep -c '^        "1' "$work/tags")" -eq 6 ] || fail "tags are missing: $(cat "$work/tags")"

# The same clients on `kiln registry serve`.
coproc SERVE { exec "$kiln_registry" serve --quiet --registry "$registry"; }
read -r url <&"${SERVE[0]}"
here=${url#http://}/tiny-op
[ "$(digest_of "docker://$here:1" --tls-verify=false)" = "$second" ] || fail "skopeo reads another index from serve"
copy --src-tls-verify=false "docker://$here:1" "oci:$work/copy5:1"
skopeo list-tags --tls-verify=false "docker://$here" >"$work/served"
diff <(grep '^        "' "$work/tags") <(grep '^        "' "$work/served") || fail "serve lists other tags than nginx"
if command -v oras >/dev/null; then
  [ "$(oras resolve --plain-http "$here:1")" = "$second" ] || fail "oras resolves another index from serve"
  [ "$(oras repo tags --plain-http "$here" | wc -l)" = "$(grep -c '^        "' "$work/tags")" ] || fail "oras lists others"
  oras discover --plain-http "$here:1" >/dev/null || fail "oras cannot ask serve for referrers"
fi
kill "$SERVE_PID"
echo "serve: nginx and skopeo carry every digest unchanged"
