#!/usr/bin/env bash
# kernels BIN REGISTRY PREFIX: a registry becomes the package kiln-kernels, and where that is installed beside Kiln, a user
# without settings installs a kernel; what an administrator says in /etc/kiln counts, and what a user says counts more.
# PREFIX/share/kiln/registry is the registry that the binaries of BIN ask by default. Nothing of this machine changes: as
# root, in a mount namespace of its own. Exit status 77: not root, or no namespaces.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
if [ "${4:-}" != inside ]; then
  unshare --mount true 2>/dev/null || { echo "skipped: only root may mount"; exit 77; }
  [ -d "$2" ] || { echo "skipped: no registry at $2"; exit 77; }
  exec unshare --mount --propagation private "$0" "$1" "$2" "$3" inside
fi
bin=$1 published=$2 prefix=$3
fail() { echo "kernels: $*" >&2; exit 1; }
whole=${KILN_WHOLE_MATRIX:-}
unset "${!KILN_@}"
work=$(mktemp -d)
chmod 0755 "$work"
trap 'rm -rf "$work"' EXIT
export HOME=$work/home
unset XDG_CONFIG_HOME XDG_CACHE_HOME
mkdir -m 0755 "$HOME" "$work/keys"

# Signed, with keys that live as long as this test.
cp -r "$published" "$work/registry"
cd "$work"
make_root() {  # make_root KEYS FILE
  local key
  for key in root targets online; do "$bin/kiln" registry key "keys/$1$key" >/dev/null; done
  "$bin/kiln" registry init --root-key "keys/$1root.pub" --targets-key "keys/$1targets.pub" \
    --online-key "keys/$1online.pub" --out "$2" >/dev/null
  "$bin/kiln" registry sign "$2" --key "keys/$1root" >/dev/null
}
make_root '' root.json
"$bin/kiln" registry sign --registry registry --root root.json --key keys/targets --key keys/online >/dev/null
"$source/ci/kernels" --variants registry root.json out

# The .deb, in this namespace's /usr/share/kiln or whatever these binaries were built for.
mkdir deb && dpkg-deb --extract out/kiln-kernels_*_all.deb deb
if command -v lintian >/dev/null; then lintian --allow-root --fail-on error,warning out/kiln-kernels_*_all.deb; fi
mount -t tmpfs none "$prefix/share"
cp -r deb/usr/share/kiln "$prefix/share/"
"$bin/kiln" install geglu-mlp@1 --device cpu | grep -q 'geglu-mlp@1' || fail "it does not install without settings"
"$bin/kiln" trust list | grep -q "$prefix/share/kiln/registry" || fail "trust list does not say that the root is there"

# Signed is signed: a root that vouches for another registry refuses this one.
make_root other- other.json
cp other.json "$prefix/share/kiln/registry.root.json"
rm -rf "$HOME/.cache"
if "$bin/kiln" install geglu-mlp@1 --device cpu 2>said; then fail "a registry that its root does not vouch for installs"; fi
cp root.json "$prefix/share/kiln/registry.root.json"

# Where Kiln and its kernels lie in one prefix, wherever that is, no place that the binaries were compiled for counts:
# the tar of Kiln and that of kernels; a Python environment with both wheels.
mkdir -p tar/bin && cp "$bin/kiln" tar/bin && tar -C tar --strip-components=1 -xf out/kiln-kernels-*.tar.gz
tar/bin/kiln doctor --json 2>/dev/null | grep -q "\"registry\": \"$work/tar/share/kiln/registry\"" ||
  fail "kernels beside a moved Kiln are not its default: $(tar/bin/kiln doctor --json)"
HOME=$work/nobody tar/bin/kiln install geglu-mlp@1 --device cpu --cache "$work/tar-cache" >/dev/null
python3 -m venv environment
environment/bin/pip install --quiet --no-index --no-deps out/kiln_kernels-*-any.whl
for place in environment/lib/python3.*/site-packages; do
  cp -rL "$source/loader/python/kiln" "$place/kiln" && cp "$bin"/../loader/libkiln.so.0 "$place/kiln/libkiln.so"
done
KILN_CACHE=$work/wheel-cache environment/bin/python -c "
import kiln
said = kiln.resolve('geglu-mlp', version=1, device='cpu')
assert '$work/environment/share/kiln/registry' in str(said), said"

# A variant wheel has what its generation of GPUs takes, PTX and CPU variants, under the same signed metadata; no other's.
# Machine code for SM 12.0 is in the whole matrix alone.
of_sm120=compute_80
[ "$whole" != ON ] || of_sm120=sm_120
for generation in sm80=8.0=rms-norm=sm_80 sm90=9.0=geglu-mlp=sm_90a sm120=12.0=geglu-mlp=$of_sm120; do
  IFS='=' read -r label sm package variant <<<"$generation"
  wheel=$(echo out/kiln_kernels-*-any-"$label".whl)
  [ "$(stat -c %s "$wheel")" -lt "$(stat -c %s out/kiln_kernels-*-any.whl)" ] || fail "$wheel is no smaller than all"
  python3 -m zipfile -e "$wheel" "$label"
  cp -r "$label"/*.dist-info/variant.json "$label.json"
  grep -q "\"${label#sm}_real\"" "$label.json" || fail "$wheel does not say $label: $(cat "$label.json")"
  rm -rf tar/share/kiln && mkdir -p tar/share && cp -r "$label"/*.data/data/share/kiln tar/share/kiln
  for device in "" "--device cpu"; do
    # shellcheck disable=SC2086  # no word, or two
    env HOME="$work/nobody" KILN_OVERRIDE_SM=$sm KILN_OVERRIDE_CUDA=13.0 \
      tar/bin/kiln install "$package@1" $device --cache "$work/$label-cache" >said 2>&1 || fail "$label $device: $(cat said)"
    [ -n "$device" ] || grep -q "$variant" said || fail "$label got $(cat said), expected $variant"
  done
done
python3 - out/kiln_kernels-*-variants.json <<'END' || fail "the index does not name each wheel"
import json, pathlib, sys
index = pathlib.Path(sys.argv[1])
named = json.loads(index.read_text())["variants"]
assert set(named) == {wheel.stem.rpartition("-")[2] for wheel in index.parent.glob("*-any-*.whl")}, named
END

# Who names a registry, in order: the request, the variable, the user, the administrator, the default.
cp -r /etc "$work/etc"
mount --bind "$work/etc" /etc
mkdir -p /etc/kiln "$HOME/.config/kiln"
asked() { "$bin/kiln" doctor "$@" --json 2>/dev/null | python3 -c 'import json, sys; print(json.load(sys.stdin)["registry"])'; }
expect() {
  local found
  found=$(asked "${@:2}") || true
  [ "$found" = "$1" ] || fail "doctor ${*:2} asks $found, expected $1"
}
for place in administrator user variable request; do mkdir "$work/$place"; done
settings() { echo "{\"schema\": \"kiln.settings/1\", \"registry\": \"$work/$1\", \"deny\": [\"cpu-$1\"]}"; }
expect "$prefix/share/kiln/registry"
settings administrator >/etc/kiln/config.json
expect "$work/administrator"
settings user >"$HOME/.config/kiln/config.json"
expect "$work/user"
export KILN_REGISTRY=$work/variable
expect "$work/variable"
expect "$work/request" --registry "$work/request"
"$bin/kiln" doctor >said || true  # the folders are no registries
grep -q /etc/kiln/config.json said || fail "doctor does not say who may name a registry"
unset KILN_REGISTRY
chmod 0666 /etc/kiln/config.json
if "$bin/kiln" doctor >said 2>&1; then fail "settings that everyone may write count"; fi
grep -q '/etc/kiln/config.json' said || fail "it does not say which file: $(cat said)"
if grep -q KILN_CONFIG said; then fail "it names a variable that does not cure it: $(cat said)"; fi
echo "kernels: installed without settings; the order of the registries holds"
