#!/usr/bin/env bash
# Builds the variants of all packages, then those of geglu-mlp again: the second run must find nothing to do.
# With KILN_WHOLE_MATRIX=ON it is every variant of geglu-mlp; swiglu-mlp has the same device code but for its gates:
# here only one toolkit compiles it, where it is published all of them, and PTX. Else it is one variant of each kind,
# all of which the whole matrix has, too, so that both may use one folder: of geglu-mlp every level of a CPU, PTX, and
# the GPU with kernels of its own, which has the portable ones, too; of rms-norm, whose kernels compile in seconds,
# another GPU and PTX for both architectures; of swiglu-mlp one CPU and PTX; of quantized-mlp one GPU and two CPUs, whose
# kernels differ; of packages in Triton, whose kernels take minutes, the CPU's.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -d "$KILN_TOOLCHAINS" ] || { echo "skipped: no compilers at $KILN_TOOLCHAINS; run ci/toolchains"; exit 77; }
build() {
  "$KILN_BIN/kiln" build --toolchains "$KILN_TOOLCHAINS" --out "$KILN_KERNELS" "$@"
}
geglu=() swiglu=(--only 'cu13.5-*,cpu-*,cu11.8-compute_80-x86_64') quantized=(--only 'cu13.5-*,cpu-*') norm=() others=()
if [ "$KILN_WHOLE_MATRIX" != ON ]; then
  swiglu=(--only 'cu11.8-compute_80-x86_64,cpu-x86-64-v3')
  norm=(--only 'cu13.5-sm_80-x86_64,cu11.8-compute_80-*,cpu-*')
  quantized=(--only 'cu13.5-sm_90-x86_64,cpu-x86-64-v3,cpu-x86-64-v4-amx')
  others=(--only 'cpu-*')
  geglu=(--only 'cu13.5-sm_90a-x86_64,cu11.8-compute_80-x86_64,cpu-*')
fi
# codegen_test compares the headers too, but may run after this has written them.
headers() { sha256sum packages/*/include/kiln/ops/*.hpp; }
committed=$(headers)
for schema in packages/*/package.json; do
  name=$(basename "${schema%/*}")
  case $name in geglu-mlp|swiglu-mlp) continue ;; esac
  only=()
  if grep -q '"launches"' "$schema"; then only=("${others[@]}"); fi
  if [ "$name" = quantized-mlp ]; then only=("${quantized[@]}"); fi
  if [ "$name" = rms-norm ]; then only=("${norm[@]}"); fi
  build "$name" "${only[@]}"
done
build swiglu-mlp "${swiglu[@]}"
build geglu-mlp "${geglu[@]}"
diff <(echo "$committed") <(headers) || { echo "matrix: kiln build wrote these headers anew; commit them"; exit 1; }
before=$(date +%s%N)
build geglu-mlp "${geglu[@]}" --json | tests/cli/documents.py
took=$((($(date +%s%N) - before) / 1000000))
echo "matrix: a second build took $took ms"
[ "$took" -lt 60000 ]  # 1 to 2 s, on a machine with nothing else to do
