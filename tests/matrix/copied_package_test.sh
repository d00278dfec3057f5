#!/usr/bin/env bash
# A package is its folder: geglu-mlp copied under another name builds, publishes, resolves and loads
# with no edit outside the copy. Its numeric check stays out: build.rms_norm builds that of a copy.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
[ -d "$KILN_TOOLCHAINS" ] || { echo "skipped: no compilers at $KILN_TOOLCHAINS; run ci/toolchains"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export KILN_CACHE=$work/cache KILN_REGISTRY=$work/registry
mkdir "$work/packages"
cp -r "$source/packages/gated-mlp" "$work/packages/"
cp -r "$source/packages/geglu-mlp" "$work/packages/copied-mlp"
sed -i '0,/"geglu-mlp"/s//"copied-mlp"/; s/geglu_mlp\.py/copied_mlp.py/' "$work/packages/copied-mlp/package.json"
mv "$work/packages/copied-mlp/python/"{geglu,copied}_mlp.py

"$KILN_BIN/kiln" build --toolchains "$KILN_TOOLCHAINS" --packages "$work/packages" \
  --out "$work/kernels" --no-check --only "$([ "$KILN_WHOLE_MATRIX" = ON ] && echo 'cpu-*' || echo cpu-x86-64-v3)"
"$KILN_BIN/kiln" registry publish --registry "$KILN_REGISTRY" "$work/kernels/copied-mlp"
"$KILN_BIN/kiln" doctor copied-mlp@1 --device cpu
"$KILN_BIN/kiln" list | grep -q '^copied-mlp@1'
