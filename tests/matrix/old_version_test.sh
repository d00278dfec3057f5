#!/usr/bin/env bash
# ci/published, in a repository of its own, on the package of docs/PACKAGES.md: version 1 was published, the
# sources are version 2's now, and version 1 still builds to its bytes. Bytes that differ are named.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
[ -d "$KILN_TOOLCHAINS" ] || { echo "skipped: no compilers at $KILN_TOOLCHAINS; run ci/toolchains"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@localhost GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@localhost
commit() { git -C "$work/repository" add -A && git -C "$work/repository" commit -qm "$1"; }

package=$work/repository/packages/double
mkdir -p "$work/repository/"{ci,build-matrix,loader}
cp "$source/ci/published" "$work/repository/ci/"
cp -r "$source/build-matrix/"{sdk,matrix.json} "$work/repository/build-matrix/"
cp -r "$source/loader/include" "$work/repository/loader/"
# The files of docs/PACKAGES.md.
python3 - "$source/docs/PACKAGES.md" "$work/repository" <<'PYTHON'
import pathlib, re, sys
for path, text in re.findall(r"^```\w+ (packages/\S+)\n(.*?)^```$", open(sys.argv[1]).read(), re.M | re.S):
    file = pathlib.Path(sys.argv[2], path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
PYTHON
git -C "$work" init -q repository
commit "double: version 1"

"$KILN_BIN/kiln" build --toolchains "$KILN_TOOLCHAINS" --packages "$work/repository/packages" --out "$work/kernels" \
  --sdk "$work/repository/build-matrix/sdk" --abi "$work/repository/loader/include" double
mkdir "$package/published"
python3 - "$work/kernels/double" "$(git -C "$work/repository" rev-parse HEAD)" >"$package/published/1.json" <<'PYTHON'
import hashlib, json, pathlib, sys
variants = {}
for path in pathlib.Path(sys.argv[1]).glob("*/manifest.json"):
    text = path.read_bytes()
    manifest = json.loads(text)
    variants[path.parent.name] = {"manifest": "sha256:" + hashlib.sha256(text).hexdigest(),
                                  "config": manifest["config"]["digest"],
                                  "layer": manifest["layers"][0]["digest"]}
print(json.dumps({"schema": "kiln.published/1", "package": "double", "version": 1, "commit": sys.argv[2],
                  "variants": variants}))
PYTHON
sed -i 's/"version": 1/"version": 2/; s/out = 2 x"/out = x + x"/' "$package/package.json"
sed -i 's/2 \* x\[i\]/x[i] + x[i]/' "$package/csrc/double.cpp"
commit "double: version 2"

"$work/repository/ci/published" double 1 | tee "$work/said"
grep -qx 'published: 2 of 2 variants of double@1 have their old bytes' "$work/said"

sed -i 's/"layer": "sha256:..../"layer": "sha256:0000/' "$package/published/1.json"
if "$work/repository/ci/published" double 1 >"$work/said" 2>&1; then
  echo "other bytes were taken for version 1's"
  exit 1
fi
grep -qE 'published: double@1 cpu-(armv8-a|x86-64-v3) has other bytes: found' "$work/said"
