#!/usr/bin/env bash
# rms_norm_test COMPILER LIBRARY…: a package that Kiln's build does not know, from its folder to its numbers: built for
# the CPU and as PTX, published, and called through the typed ops that come out of the registry. Nothing of its
# folder is there any more when its user compiles. Its bytes are those that matrix.build made in another folder.
# Wants KILN_BIN, KILN_TOOLCHAINS and KILN_KERNELS.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
compiler=$1
shift
[ -d "$KILN_TOOLCHAINS" ] || { echo "skipped: no compilers at $KILN_TOOLCHAINS; run ci/toolchains"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export KILN_CACHE=$work/cache KILN_REGISTRY=$work/registry KILN_OVERRIDE_SM='' KILN_OVERRIDE_CUDA=''
kiln=$KILN_BIN/kiln
cp -r "$source/packages/rms-norm" "$work/rms-norm"
"$kiln" build "$work/rms-norm" --toolchains "$KILN_TOOLCHAINS" --out "$work/kernels" --only cpu-x86-64-v3 --no-check
! grep -q 'check/' "$work/kernels/rms-norm/cpu-x86-64-v3/config.json" || { echo "--no-check made a check"; exit 1; }
variants=(cpu-x86-64-v3 cu11.8-compute_80-x86_64)
(umask 027 && LC_ALL=C.UTF-8 TZ=Asia/Tokyo "$kiln" build "$work/rms-norm" --toolchains "$KILN_TOOLCHAINS" \
  --out "$work/kernels" --only "$(IFS=, && echo "${variants[*]}")")
for variant in "${variants[@]}"; do
  diff -r "$KILN_KERNELS/rms-norm/$variant" "$work/kernels/rms-norm/$variant"
done
"$kiln" registry publish --registry "$KILN_REGISTRY" "$work/kernels/rms-norm" --allow-untested '*'
cp "$work/rms-norm/tests/rms_norm_check.cpp" "$work/check.cpp"
rm -r "$work/rms-norm" "$work/kernels"

# The headers first: they need no library, and asking where they are needs no network.
"$kiln" install --dev rms-norm@1
[ -z "$("$kiln" list)" ] || { echo "install --dev installed a library"; exit 1; }
include=$("$kiln" path --dev rms-norm@1)
grep -q 'class RmsNormImpl' "$include/kiln/torch/rms_norm.hpp"
[ -s "$include/../CARD.md" ]
[ -s "$include/../python/rms_norm.py" ]
[ -s "$include/../check/x86_64.so" ]
[ -s "$include/../check/aarch64.so" ]
"$compiler" -std=c++20 -O1 -Wall -Wextra -Werror -I "$include" -I "$source/loader/include" "$work/check.cpp" \
  -o "$work/check" "$@" -lcurl -lssl -lcrypto -larchive -ldl -pthread
"$work/check" --device cpu
"$kiln" registry check --registry "$KILN_REGISTRY"
"$kiln" cache verify
