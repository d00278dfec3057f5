#!/usr/bin/env bash
# quick PACKAGES: what ci/package made, used where it was unpacked: the tar by find_package and pkg-config from
# a moved folder, by C++ and C; the .debs read and judged by lintian; the wheel imported. No root, no
# network. With $KILN_REGISTRY the example computes a layer, and so does Python. Exit status 77: there are no
# packages, or those of another commit.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
packages=$(realpath -m "$1")
[ -f "$packages/COMMIT" ] || { echo "skipped: no packages in $packages; run ci/package"; exit 77; }
[ "$(cat "$packages/COMMIT")" = "$(git -C "$source" rev-parse HEAD)" ] ||
  { echo "skipped: the packages in $packages are of another commit; run ci/package"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "install: $*" >&2; exit 1; }
export KILN_CACHE=$work/cache HOME=$work KILN_UNSIGNED=/,https://127.0.0.1 KILN_CONFIG=$work/settings.json
echo '{"schema": "kiln.settings/1", "network": {"tries": 1}}' >"$work/settings.json"

version=$(sed -n 's/^project(kiln VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")
name=kiln-$version-linux-x86_64
mkdir "$work/first"
tar -C "$work/first" -xf "$packages/$name.tar.gz"
mv "$work/first/$name" "$work/moved"
prefix=$work/moved

# The command works from any folder, by any name.
ln -s "$prefix/bin/kiln" "$work/linked-kiln"
[ "$(cd / && "$work/linked-kiln" --version)" = "$("$prefix/bin/kiln" --version)" ] || fail "kiln --version differs by folder"
"$prefix/bin/kiln" registry --help >/dev/null || fail "kiln does not find kiln-registry beside it"

# site COMMAND…: its kiln-registry makes a site, and serves one.
mkdir "$work/empty"
site() {
  rm -rf "$work/pages" "$work/url"
  "$@" site "$work/pages" --registry "$work/empty" >/dev/null || fail "$* site"
  grep -q '<html' "$work/pages/index.html" || fail "$* site wrote no page"
  "$@" serve --quiet --registry "$work/empty" >"$work/url" &
  local server=$!
  for _ in {1..100}; do [ -s "$work/url" ] || sleep 0.1; done
  python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())' \
    "$(cat "$work/url")/" >"$work/served" || fail "$* serve"
  kill "$server"
  wait "$server" || fail "$* serve ends with exit status $?"
  grep -q '<html' "$work/served" || fail "$* serve served no page"
}
site "$prefix/bin/kiln-registry"

# find_package, without the development files of any library.
cmake -S "$source/tests/install/linked" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$work/build" >/dev/null
"$work/build/linked" >"$work/texts" || fail "a program that links kiln::kiln answers: $(cat "$work/texts")"
libraries=$(ldd "$work/build/linked" | awk '{ print $1 }' | grep -vE '^(linux-vdso|/lib.*ld-linux|lib(c|m|dl|pthread|stdc\+\+|gcc_s)\.so)' || true)
[ -z "$libraries" ] || fail "a program that links kiln::kiln needs $libraries"
"$work/build/c_linked" >/dev/null || fail "a C program that links kiln::c does not run"

# pkg-config, which knows the same two.
flags() { PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config "$@"; }
read -ra words <<<"$(flags --cflags --libs kiln-cpp)"
g++ -std=c++20 "$source/tests/install/linked/main.cpp" "${words[@]}" -o "$work/with-pkg-config"
"$work/with-pkg-config" >/dev/null
read -ra words <<<"$(flags --cflags --libs kiln)"
cc "$source/tests/consumer/components/main.c" "${words[@]}" -o "$work/c-with-pkg-config"
LD_LIBRARY_PATH=$prefix/lib "$work/c-with-pkg-config" >/dev/null

# The wheel, unpacked as pip does it.
python3 -m zipfile -e "$packages/kiln_hub-$version-py3-none-manylinux_2_28_x86_64.whl" "$work/site"
(cd / && PYTHONPATH=$work/site python3 -c 'import kiln; print(kiln.__version__)') >"$work/python" || fail "import kiln"
[ "$(cat "$work/python")" = "$version" ] || fail "kiln.__version__ is $(cat "$work/python"), expected $version"
bundled=$(cd / && PYTHONPATH=$work/site python3 -c 'import kiln.packages; print(*kiln.packages.bundled())')
[ "$bundled" = "$(cd "$source/packages" && grep -l '"python":' -- */package.json | xargs -n 1 dirname | sort | xargs)" ] ||
  fail "the wheel bundles the modules of '$bundled', not of every package that has some"

# Its METADATA has no field that its version of the format does not know; License-File came with 2.4.
python3 - "$packages"/kiln_hub-*.whl <<'END' || fail "a wheel's METADATA"
import email, sys, zipfile
known = {"Metadata-Version", "Name", "Version", "Summary", "License", "Classifier", "Requires-Python", "Requires-Dist",
         "Description-Content-Type"}
for path in sys.argv[1:]:
    with zipfile.ZipFile(path) as wheel:
        (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
        said = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
        assert said["Metadata-Version"] == "2.1" and set(said) <= known, f"{path}: {sorted(set(said) - known)} in {said['Metadata-Version']}"
        assert f"{info}/licenses/LICENSE" in wheel.namelist(), f"{path} has no licence"
END

# The .debs: every file of an install is in one of them, and lintian has nothing to say.
debs=("$packages"/kiln_"$version"-*.deb "$packages"/libkiln0_*.deb "$packages"/libkiln-dev_*.deb)
for deb in "${debs[@]}"; do dpkg-deb --contents "$deb" | awk '{ print $6 }'; done | sed 's/^\.//' | sort >"$work/files"
for expected in /usr/bin/kiln /usr/bin/kiln-registry /usr/include/kiln/kiln.hpp \
  /usr/include/kiln/layers/geglu_mlp.hpp /usr/lib/x86_64-linux-gnu/libkiln.so.0 \
  /usr/lib/x86_64-linux-gnu/libkiln.a /usr/lib/x86_64-linux-gnu/pkgconfig/kiln.pc \
  /usr/lib/x86_64-linux-gnu/cmake/kiln/kiln-config.cmake /usr/share/bash-completion/completions/kiln; do
  grep -qxF "$expected" "$work/files" || fail "no .deb has $expected"
done
depends() { dpkg-deb --field "$1" Depends; }
for needed in libc6 libcurl4 libssl3 libarchive13; do
  for deb in "${debs[@]:0:2}"; do
    depends "$deb" | grep -q "\b$needed\b" || fail "$(basename "$deb") does not depend on $needed"
  done
done
depends "${debs[0]}" | grep -q '\blibmd4c0\b' || fail "$(basename "${debs[0]}") does not depend on libmd4c0"
if depends "${debs[0]}" | grep httplib; then fail "each Debian has another libcpp-httplib"; fi
lintian --allow-root --fail-on error,warning "${debs[@]}"

# Every program and library of all of them is hardened.
for deb in "${debs[@]}"; do dpkg-deb --extract "$deb" "$work/debs"; done
mkdir -p "$work/wheel"
(cd "$work/wheel" && python3 -m zipfile -e "$packages"/kiln_hub-*_x86_64.whl .)
mapfile -t binaries < <(find "$work/debs" "$prefix" "$work/wheel" -type f \
  \( -path '*/bin/*' -o -name '*.so*' \) | sort -u)
"$source/tests/install/hardened.sh" "${binaries[@]}" || fail "a binary is not hardened"

# The tar for aarch64, under qemu's user emulation with Debian's arm64 C library: the command, and a C program.
sysroot=/usr/aarch64-linux-gnu
arm=$work/kiln-$version-linux-aarch64
emulate() { qemu-aarch64 -L "$sysroot" "$@"; }
zig=${KILN_TOOLCHAINS:-$source/build/toolchains}/zig/zig
if [ -f "$packages/kiln-$version-linux-aarch64.tar.gz" ] && [ -e "$sysroot/lib/libc.so.6" ] && [ -x "$zig" ] &&
  command -v qemu-aarch64 >/dev/null; then
  tar -C "$work" -xf "$packages/kiln-$version-linux-aarch64.tar.gz"
  [ "$(emulate "$arm/bin/kiln" --version)" = "$("$prefix/bin/kiln" --version)" ] || fail "kiln --version for aarch64"
  "$source/tests/install/hardened.sh" "$arm"/bin/* "$arm/lib/libkiln.so.$version" "$arm"/lib/kiln/*.so || fail "a binary for aarch64 is not hardened"
  site qemu-aarch64 -L "$sysroot" "$arm/bin/kiln-registry"
  ZIG_GLOBAL_CACHE_DIR=$work/zig ZIG_LOCAL_CACHE_DIR=$work/zig "$zig" cc -target aarch64-linux-gnu.2.28 "$source/tests/consumer/components/main.c" -I"$arm/include" \
    -L"$arm/lib" -lkiln -o "$work/c-aarch64"
  emulate -E LD_LIBRARY_PATH="$arm/lib" "$work/c-aarch64" >/dev/null || fail "libkiln.so for aarch64"
  if [ -e "${KILN_REGISTRY:-}" ]; then
    KILN_CACHE=$work/arm-cache emulate "$arm/bin/kiln" install geglu-mlp@1 --device cpu | grep -q armv8 ||
      fail "kiln install on aarch64 takes no armv8 variant"
    # A layer, by a program that links libkiln.a; the compiler is the one of ci/dependencies, with its C++ library.
    "$source/build/dependencies/aarch64/bin/c++" -std=c++20 -O2 "$source/packages/geglu-mlp/example/main.cpp" \
      -I"$arm/include" "$arm/lib/libkiln.a" -o "$work/layer-aarch64"
    KILN_CACHE=$work/arm-cache emulate "$work/layer-aarch64" 64 96 160
  fi
else
  echo "install: the tar for aarch64 is not tried: it, zig, qemu-aarch64 or $sysroot is missing"
fi

if [ -e "${KILN_REGISTRY:-}" ]; then
  "$prefix/bin/kiln" install geglu-mlp@1 --device cpu >/dev/null
  cmake -S "$source/packages/geglu-mlp/example" -B "$work/example" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_BUILD_TYPE=Release >/dev/null
  cmake --build "$work/example" >/dev/null
  "$work/example/geglu_mlp_example" 64 96 160
fi
echo "install: the tar, the .debs and the wheel do what they promise"
