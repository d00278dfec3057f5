#!/usr/bin/env bash
# Publishes what matrix.build built, then the same again: the second time nothing may change.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -d "$KILN_KERNELS" ] || { echo "skipped: nothing was built"; exit 77; }
rm -rf "$KILN_REGISTRY" "$KILN_CACHE"
publish_all() {
  local package records record
  for package in "$KILN_KERNELS"/*/; do
    records=()
    for record in packages/"$(basename "$package")"/record/*.json; do
      [ ! -e "$record" ] || records+=(--records "$record")
    done
    "$KILN_BIN/kiln" registry publish --registry "$KILN_REGISTRY" "${records[@]}" "${package%/}"
  done
}
publish_all
hash_tree() { (cd "$KILN_REGISTRY" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum); }
before=$(hash_tree)
publish_all
[ "$before" = "$(hash_tree)" ] || { echo "publishing the same bytes again changed the registry"; exit 1; }
"$KILN_BIN/kiln" registry check --registry "$KILN_REGISTRY"
