#!/usr/bin/env bash
# The aarch64 CPU variant loads and computes: a C program, cross-compiled by the pinned zig, calls it
# under qemu's user emulation with Debian's arm64 C library.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
sysroot=/usr/aarch64-linux-gnu
library=$KILN_KERNELS/geglu-mlp/cpu-armv8-a/libgeglu_mlp.so
for needed in "$KILN_TOOLCHAINS/zig/zig" "$library" "$sysroot/lib/libc.so.6" "$(command -v qemu-aarch64)"; do
  [ -e "$needed" ] || { echo "skipped: $needed is missing"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dlpack=$(dirname "$(dirname "$(find /usr/include /usr/local/include -name dlpack.h | head -n 1)")")
mkdir "$work/include"
ln -s "$dlpack/dlpack" "$work/include/dlpack"
export ZIG_GLOBAL_CACHE_DIR=$work/zig ZIG_LOCAL_CACHE_DIR=$work/zig  # not the user's, who may have no HOME
"$KILN_TOOLCHAINS/zig/zig" cc -target aarch64-linux-gnu.2.17 -std=c11 -O1 -I"$work/include" \
  -I"$source/loader/include" "$source/tests/consumer/main.c" -o "$work/c_consumer" -ldl -lm
qemu-aarch64 -L "$sysroot" "$work/c_consumer" "$library"
echo "aarch64: the CPU variant loads and computes"
