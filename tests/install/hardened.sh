#!/usr/bin/env bash
# Programs and libraries have what loader/hardening.cmake says that they are built with:
#
#   hardened [--packages] FILE…
#
# With --packages they are libraries of kernels, by zig: build-matrix/compilers/zig.cpp has their flags. A small one calls
# nothing that FORTIFY has a twin of. The words of a finding are those of Debian's hardening-check.
set -euo pipefail
export LC_ALL=C  # readelf speaks other languages, too
packages=
if [ "${1:-}" = --packages ]; then packages=1; shift; fi
[ $# -gt 0 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }

failed=0
miss() { echo "hardened: $1: no $2"; failed=1; }
for file in "$@"; do
  headers=$(readelf -W --file-header --program-headers --dynamic --notes "$file")
  symbols=$(readelf -W --dyn-syms "$file")
  has() { grep -qE "$1" <<<"$headers"; }
  has '^ *Type: +DYN' || miss "$file" "position independent executable"
  has 'GNU_RELRO' || miss "$file" "read-only relocations"
  has 'BIND_NOW|FLAGS_1.*NOW' || miss "$file" "immediate binding"
  has 'GNU_STACK .*RW ' || miss "$file" "stack that is not executable"
  if has 'TEXTREL'; then miss "$file" "code that is never written"; fi
  if has 'RPATH|RUNPATH'; then miss "$file" "search by the system's rules alone"; fi
  has 'Build ID: [0-9a-f]{32}' || miss "$file" "build id"
  if [ -n "$packages" ]; then
    grep -q '__stack_chk_fail' <<<"$symbols" || miss "$file" "stack protector"
    # zig's own objects for the C library of aarch64 have no BTI, and so no file that they are in says it has.
    has 'Machine: .*X86-64' && mark='\xf3\x0f\x1e\xfa' || mark='\x3f\x23\x03\xd5'
    [ "$(LC_ALL=C grep -aoP "$mark" "$file" | wc -l)" -gt 8 ] || miss "$file" "control flow protection"
    continue
  fi
  # A read of the canary, %fs:0x28, in whichever register: zig may link a __stack_chk_fail of its own, which no symbol shows.
  if has 'Machine: .*X86-64'; then
    [ "$(LC_ALL=C grep -aoP '\x64\x48[\x8b\x2b\x33\x3b].\x25\x28\x00\x00\x00' "$file" | wc -l)" -gt 8 ] || miss "$file" "stack protector"
  else
    # The value from which zig's own canary begins; nobody but a function that has one asks for it.
    grep -q '__stack_chk_fail' <<<"$symbols" || readelf -W -x .data "$file" | grep -q '00000000 00000aff' || miss "$file" "stack protector"
  fi
  # Of a program so small that it calls no function with such a twin, this says nothing.
  grep -qE ' (__(mem|str|read|v?f?s?n?printf)[a-z]*_chk)' <<<"$symbols" || miss "$file" "fortified function of glibc"
  # endbr64, where calls may land; the C library's own objects have a few. They decide the note of a file, too.
  if has 'Machine: .*X86-64'; then
    [ "$(LC_ALL=C grep -aoP '\xf3\x0f\x1e\xfa' "$file" | wc -l)" -gt 8 ] || miss "$file" "control flow protection"
  fi
done
[ $failed = 0 ] && echo "hardened: $# files have all of it"
exit $failed
