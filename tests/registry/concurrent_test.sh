#!/usr/bin/env bash
# Ten processes publish five different variants, each twice, into one registry at the same time while a
# reader lists it: every process succeeds, every listing is whole, and nothing is lost.
#   concurrent KILN_REGISTRY_BINARY WRITE_FIXTURE
set -euo pipefail
kiln_registry=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$2" "$work"

for round in 1 2 3; do
  registry=$work/registry$round
  mkdir "$registry"
  touch "$work/running"
  (
    while [ -e "$work/running" ]; do
      "$kiln_registry" list --registry "$registry" >/dev/null 2>&1 || exit 1
    done
  ) &
  reader=$!
  publishers=()
  for variant in "$work"/one/* "$work"/two/* "$work"/one/* "$work"/two/*; do
    "$kiln_registry" publish --quiet --registry "$registry" "$variant" >/dev/null &
    publishers+=($!)
  done
  for process in "${publishers[@]}"; do
    wait "$process" || { echo "FAILED: a publisher refused, round $round"; exit 1; }
  done
  rm "$work/running"
  wait "$reader" || { echo "FAILED: a reader saw a registry that is not whole"; exit 1; }
  variants=$("$kiln_registry" list --quiet --registry "$registry" | grep -c '^  ')
  [ "$variants" -eq 5 ] || { echo "FAILED: $variants of 5 variants are there, round $round"; exit 1; }
  "$kiln_registry" check --quiet --registry "$registry" >/dev/null
done
echo "concurrent: 3 rounds of 10 publishers and a reader"
