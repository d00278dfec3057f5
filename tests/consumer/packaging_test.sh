#!/usr/bin/env bash
# packaging BUILD_DIR: what a prefix promises who packages Kiln or brings it along. It may be moved; the C
# API needs no development files of the loader's libraries; pkg-config finds it; and a project with Kiln
# inside installs nothing of it unasked. Needs no kernels.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "packaging: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/moved"
if grep -rIl "$work/first" "$work/moved"; then fail "these files name the prefix, which was moved"; fi
if grep -rIl "kiln::core" "$work/moved"; then fail "a private target has a public name"; fi

cmake -S "$source/tests/consumer/components" -B "$work/c" -G Ninja -DCMAKE_PREFIX_PATH="$work/moved" >/dev/null ||
  fail "find_package(kiln COMPONENTS c abi) wants more than the C API needs"
cmake --build "$work/c" >/dev/null
"$work/c/components_consumer"

pc=$(dirname "$(find "$work/moved" -name kiln.pc)")
flags() { PKG_CONFIG_PATH=$pc pkg-config "$@" kiln; }
[ "$(realpath "$(flags --variable=prefix)")" = "$work/moved" ] ||
  fail "pkg-config finds the prefix $(flags --variable=prefix), which is $work/moved"
read -ra words <<<"$(flags --cflags --libs)"
cc "$source/tests/consumer/components/main.c" "${words[@]}" -o "$work/with-pkg-config"
LD_LIBRARY_PATH=$(flags --variable=libdir) "$work/with-pkg-config"

# The C++ API without CMake.
cat >"$work/main.cpp" <<'END'
#include <kiln/kiln.hpp>
int main() {
  try {
    kiln::get_kernel("none", {.version = 1, .registry = "/nonexistent/registry"});
  } catch (const kiln::Error& error) {
    return error.code() == kiln::ErrorCode::kNotFound ? 0 : 1;
  }
  return 1;
}
END
cpp_flags() { PKG_CONFIG_PATH=$pc pkg-config --cflags --libs kiln-cpp; }
read -ra words <<<"$(cpp_flags)"
c++ -std=c++20 "$work/main.cpp" "${words[@]}" -o "$work/cpp-with-pkg-config"
KILN_UNSIGNED=/ "$work/cpp-with-pkg-config" || fail "a C++ program that was linked by pkg-config gets another error"

# kiln::torch, with a LibTorch that is there by name.
mkdir -p "$work/torch/project"
cat >"$work/torch/TorchConfig.cmake" <<'END'
add_library(torch INTERFACE IMPORTED)
add_library(torch_cuda INTERFACE IMPORTED)
set(TORCH_LIBRARIES torch)
set(TORCH_INCLUDE_DIRS ${CMAKE_CURRENT_LIST_DIR})
END
cat >"$work/torch/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(torch_consumer LANGUAGES C CXX)
find_package(kiln REQUIRED COMPONENTS torch)
file(WRITE ${CMAKE_BINARY_DIR}/main.cpp "#ifndef KILN_TORCH_CUDA\n#error\n#endif\n#include <kiln/kiln.hpp>\nint main() {}\n")
add_executable(torch_consumer ${CMAKE_BINARY_DIR}/main.cpp)
target_link_libraries(torch_consumer PRIVATE kiln::torch)
END
cmake -S "$work/torch/project" -B "$work/torch/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/moved" \
  -DTorch_DIR="$work/torch" >/dev/null || fail "there is no component torch"
cmake --build "$work/torch/build" >/dev/null || fail "kiln::torch does not link"
grep -q "isystem $work/torch" "$work/torch/build/build.ninja" || fail "kiln::torch has no headers of LibTorch"

# What is installed belongs to a component that a .deb package has.
for component in command library development static; do
  cmake --install "$build" --prefix "$work/parts" --component "$component" >/dev/null
done
diff <(cd "$work/moved" && find . ! -type d | sort) <(cd "$work/parts" && find . ! -type d | sort) ||
  fail "these files are in no package: see loader/install.cmake"

begin=$(date +%s%N)
cmake -S "$source/tests/consumer/embedded" -B "$work/embedded" -G Ninja -DKILN_SOURCE="$source" >/dev/null ||
  fail "a project that has Kiln inside gains more than its library"
configured=$(($(date +%s%N) - begin))
steps=$(ninja -C "$work/embedded" -t commands all | grep -- ' -c ')
if grep -v "$source/loader/src/" <<<"$steps"; then fail "its all compiles what is not the loader's"; fi
echo "packaging: inside another project, $(wc -l <<<"$steps") sources, configured in $((configured / 1000000)) ms"
if [ -n "${KILN_EXHAUSTIVE:-}" ]; then
  begin=$(date +%s%N)
  cmake --build "$work/embedded" >/dev/null
  echo "packaging: and built in $((($(date +%s%N) - begin) / 1000000)) ms"
fi
cmake --install "$work/embedded" --prefix "$work/embedder" >/dev/null
[ "$(cd "$work/embedder" && find . -type f)" = ./share/embedder/CMakeLists.txt ] ||
  fail "a project that has Kiln inside installs $(cd "$work/embedder" && find . -type f | tr '\n' ' ')"
cmake "$work/embedded" -DKILN_INSTALL=ON >/dev/null
grep -q libkiln.so "$work/embedded/kiln/loader/cmake_install.cmake" || fail "KILN_INSTALL=ON installs no libkiln.so"
# Some packagers give absolute folders.
cmake "$work/embedded" -DCMAKE_INSTALL_PREFIX=/opt/k -DCMAKE_INSTALL_LIBDIR=/opt/k/lib64 -DCMAKE_INSTALL_INCLUDEDIR=/opt/h/include >/dev/null
# shellcheck disable=SC2016  # pkg-config's own
for line in 'libdir=${prefix}/lib64' 'includedir=${prefix}/../h/include'; do
  grep -qxF "$line" "$work/embedded/kiln/loader/kiln.pc" || fail "kiln.pc lacks $line where folders are absolute"
done
echo "packaging: movable, findable with and without pkg-config, quiet inside another project"
