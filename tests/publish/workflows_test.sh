#!/usr/bin/env bash
# The workflows are what GitHub accepts, the shell in them included, and every action is pinned by commit.
#   workflows ACTIONLINT
set -euo pipefail
cd "$(dirname "$0")/../.."
actionlint=$1
for tool in "$actionlint" shellcheck; do  # without shellcheck, actionlint leaves the shell out in silence
  "$tool" --version >/dev/null 2>&1 || { echo "skipped: $tool does not run here; ci/setup test installs it"; exit 77; }
done
"$actionlint" -no-color .github/workflows/*.yml
if grep -hE '^ *(- )?uses:' .github/workflows/*.yml | grep -vE '@[0-9a-f]{40} # v[0-9.]+$'; then
  echo "FAILED: an action is not pinned by its commit, with the version in a comment"
  exit 1
fi

# The linter sees these files: what is broken in them is found.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
refuse() {  # refuse WORD SED-EXPRESSION
  sed "$2" .github/workflows/publish.yml >"$work/broken.yml"
  if "$actionlint" -no-color "$work/broken.yml" >"$work/out"; then echo "FAILED: actionlint accepts: $2"; exit 1; fi
  grep -q "$1" "$work/out" || { cat "$work/out"; echo "FAILED: actionlint says nothing of $1"; exit 1; }
}
refuse 'needs.plan.outputs' 's/outputs.cells)/outputs.sells)/'
refuse 'SC2086' 's/--only "\$ONLY"/--only $ONLY/'
refuse 'permission' 's/packages: write/packages: wrong/'
echo "workflows: actionlint and shellcheck find nothing"
