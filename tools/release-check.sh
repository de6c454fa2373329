#!/bin/sh
# Usage: tools/release-check.sh VERSION
# Builds a release in a clone in a temporary directory, and compares the files with bin/release/VERSION, except for the
# signatures. "make release-check" runs it. RELEASE_IMAGE, RELEASE_BUILDER and RELEASE_PLATFORMS must have the values of
# the first build.
set -eu
version=${1-}
first=bin/release/$version
if [ -z "$version" ] || [ ! -f "$first/SHA256SUMS" ]; then
	echo "make release-check: run make release VERSION=$version first" >&2
	exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet . "$work/clone"
git -C "$work/clone" checkout --quiet "$(git rev-parse HEAD)"
make -C "$work/clone" --no-print-directory release VERSION="$version" RELEASE_IMAGE="$RELEASE_IMAGE" \
	RELEASE_BUILDER="$RELEASE_BUILDER" RELEASE_PLATFORMS="$RELEASE_PLATFORMS"
diff -r --exclude='*.sig' --exclude='*.sigstore.json' "$first" "$work/clone/bin/release/$version"
echo "the second build of $version has the same bytes"
