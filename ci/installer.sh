#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs Kiln @VERSION@ for this user, without root:
#
#   curl -fsSL @URL@/install.sh | sh
#   sh install.sh [--prefix DIR] [--kernels]      default: $HOME/.local
#
#   --kernels   also the package of kernels: kiln install then needs no registry, no settings and no network
#
# It fetches the tar for this machine, compares it with the SHA-256 that stands below, unpacks it as
# DIR/opt/kiln-@VERSION@, and makes links in DIR/bin. It writes nothing else, and nothing outside of DIR. A file that is not
# what this script names is refused, and then nothing is left. $KILN_DOWNLOAD names another place that has the files; a folder,
# such as $PWD, needs no network, nor curl or wget.
# Exit status: 1 refused; 2 the command line; 3 this machine lacks something.
#
# ci/release fills in what stands between @ signs. The last line calls main: of a script that was cut, nothing runs.
set -eu

version='@VERSION@'
url=${KILN_DOWNLOAD:-@URL@}
sums='@SUMS@'
stall=30  # seconds without a byte after which a try ends; there are four

say() { printf 'kiln: %s\n' "$*" >&2 || true; }  # it installs, whether or not anyone reads that
refuse() { say "$*" "Nothing was installed."; exit 1; }
lacking() { say "$*" "Nothing was installed."; exit 3; }

# As a shell reads it: what is printed can be pasted.
word() {
  case $1 in
    *[!A-Za-z0-9/._+:@%,=-]*) printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")" ;;
    *) printf '%s' "$1" ;;
  esac
}

tool() {
  for each in "$@"; do command -v "$each" >/dev/null 2>&1 && { printf '%s' "$each"; return; }; done
  lacking "this script needs $(printf '%s' "$*" | sed 's/ / or /g'), which is not on PATH: install it, and run this again."
}

# The machine's architecture, if the tar can run here.
architecture() {
  [ "$(uname -s)" = Linux ] || lacking "Kiln runs on Linux; this is $(uname -s)."
  machine=$(uname -m)
  case $machine in
    x86_64|aarch64) ;;
    *) lacking "Kiln is there for x86_64 and aarch64; this is $machine." ;;
  esac
  libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || lacking "Kiln needs the GNU C library; this system has another one, such as musl."
  libc=${libc#glibc }
  minor=${libc#*.}  # of 2.40.9000, too, as distributions under way have it
  [ "${libc%%.*}" -gt 2 ] || [ "${minor%%.*}" -ge 28 ] || lacking "Kiln needs glibc 2.28 or later; this is $libc."
  printf '%s' "$machine"
}

# fetch FILE: from the place of the release into $draft, and only as the bytes that $sums names.
fetch() {
  expected=$(printf '%s\n' "$sums" | sed -n "s/^\([0-9a-f]\{64\}\)  $1\$/\1/p")
  [ -n "$expected" ] || refuse "this release has no $1."
  say "fetching $url/$1"
  # Slow is not stalled: there is no limit to the whole.
  case $downloader in
    curl) curl -fsSL --retry 3 --connect-timeout "$stall" --speed-limit 1 --speed-time "$stall" -o "$draft/$1" "$url/$1" ;;
    wget) wget -q -t 4 -T "$stall" -O "$draft/$1" "$url/$1" ;;  # by letters, as BusyBox knows them
    cp) [ -f "$url/$1" ] && cp "$url/$1" "$draft/$1" ;;
  esac || refuse "$url/$1 cannot be fetched by $downloader, was cut short, or stalled for $stall seconds:" \
    "try again, or set KILN_DOWNLOAD to another place."
  found=$(sha256sum <"$draft/$1" | cut -d ' ' -f 1)  # of a name with a backslash it would print another line
  [ "$found" = "$expected" ] ||
    refuse "$url/$1 is not the file of this release: expected SHA-256 $expected, found $found. Do not use it; tell who serves it."
}

# Whatever ends the script: a version that was put aside comes back, and nothing is left.
leave() {
  if [ -n "$draft" ]; then
    if [ -d "$draft/before" ] && [ ! -e "$tree" ]; then mv "$draft/before" "$tree"; fi
    rm -rf "$draft"
  fi
  rmdir "$prefix/opt" "$prefix/bin" 2>/dev/null || true
  while [ "$prefix" != "$there" ] && rmdir "$prefix" 2>/dev/null; do prefix=$(dirname "$prefix"); done
}

main() {
  umask 022  # others may run what one installs for all
  prefix=${HOME:-}/.local kernels=
  while [ $# -gt 0 ]; do
    case $1 in
      --prefix)
        case ${2:-} in ''|-*) say "--prefix wants a folder, found '${2:-}'"; exit 2 ;; esac
        prefix=$2; shift 2 ;;
      --kernels) kernels=1; shift ;;
      *) say "unknown option $1; known: --prefix DIR, --kernels"; exit 2 ;;
    esac
  done
  case $prefix in
    /.local) lacking "HOME is not set: say where to install by --prefix DIR." ;;
    /*) ;;
    *) prefix=$PWD/$prefix ;;
  esac
  machine=$(architecture)
  [ ! -d "$PWD/$url" ] || url=$PWD/$url
  case $url in
    /*) downloader='cp' ;;
    *) downloader=$(tool curl wget) ;;
  esac
  for each in sha256sum tar gzip mktemp find dirname; do tool "$each" >/dev/null; done
  tree=$prefix/opt/kiln-$version
  for program in kiln kiln-registry; do
    link=$prefix/bin/$program
    case $(readlink "$link" 2>/dev/null || true) in
      ../opt/kiln-*|"$prefix"/opt/kiln-*) ;;
      *) if [ -e "$link" ] || [ -L "$link" ]; then refuse "$link is there, and not of this script: move it, or choose another --prefix."; fi ;;
    esac
  done
  # Kernels that this version has stay with it.
  if [ -e "$tree/share/kiln/registry.root.json" ]; then kernels=1; fi
  there=$prefix draft=
  while [ ! -e "$there" ]; do there=$(dirname "$there"); done
  trap leave EXIT
  trap 'exit 1' HUP INT TERM
  trap '' PIPE  # who reads what it says may go: it installs all the same
  mkdir -p "$prefix/opt" "$prefix/bin" 2>/dev/null || refuse "$prefix cannot be written: choose another --prefix."

  draft=$(mktemp -d "$prefix/opt/.kiln-XXXXXX") || refuse "$prefix/opt cannot be written: choose another --prefix."
  find "$prefix/opt" -maxdepth 1 -name '.kiln-??????' -mmin +1440 -exec rm -rf {} +  # of a run that was killed
  mkdir "$draft/tree"
  files=kiln-$version-linux-$machine.tar.gz
  [ -z "$kernels" ] || files="$files kiln-kernels-$version.tar.gz"
  for file in $files; do
    fetch "$file"
    gzip -dc "$draft/$file" | tar -xf - -C "$draft/tree" --strip-components=1 || refuse "$file cannot be unpacked into $prefix/opt."
  done
  "$draft/tree/bin/kiln" --version >/dev/null || refuse "${files%% *} does not run on this machine."

  # What was there of this version goes aside first: a version's folder is always whole.
  if [ -e "$tree" ]; then mv "$tree" "$draft/before"; fi
  mv -T "$draft/tree" "$tree" || refuse "$tree was put there meanwhile, by another run of this script?"
  # A bin that is a link has its own "..".
  opt=../opt
  [ "$(cd "$prefix/bin" && pwd -P)" = "$(cd "$prefix" && pwd -P)/bin" ] || opt=$prefix/opt
  for program in kiln kiln-registry; do
    ln -s "$opt/kiln-$version/bin/$program" "$draft/$program"
    mv -f "$draft/$program" "$prefix/bin/$program"
  done
  say "installed kiln $version in $tree, with links in $prefix/bin."
  case ":$PATH:" in
    *":$prefix/bin:"*) ;;
    *) say "add it to PATH:  export PATH=$(word "$prefix/bin"):\$PATH" ;;
  esac
  if [ -n "$kernels" ]; then
    registry=$(word "$tree/share/kiln/registry")  # a program that lies elsewhere does not look there by itself
    say "its kernels for programs that you build:  export KILN_REGISTRY=$registry; $(word "$prefix/bin/kiln") trust add $registry --root $registry.root.json"
  fi
  say "for CMake: $(word "-DCMAKE_PREFIX_PATH=$tree"). To remove all of it: rm -r $(word "$tree") $(word "$prefix/bin/kiln") $(word "$prefix/bin/kiln-registry")"
}

main "$@"
