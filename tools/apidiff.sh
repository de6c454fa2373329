#!/bin/sh
# Usage: tools/apidiff.sh
# Compares the exported API with the last tag before or at HEAD. Incompatible changes must be announced in CHANGELOG.md:
# see VERSIONING.md. "make verify" runs it. Without a tag, for example in a shallow clone, nothing is compared.
set -eu
tools=$(cd "$(dirname "$0")" && pwd)
if ! tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null); then
	reason="there is no tag"
	[ "$(git rev-parse --is-shallow-repository)" = false ] || reason="this is a shallow clone without tags"
	echo "tools/apidiff.sh: the exported API was not compared, because $reason"
	exit 0
fi
old=$(mktemp -d)
trap 'git worktree remove --force "$old/tree" 2>/dev/null || true; rm -rf "$old"' EXIT
git worktree add --quiet --detach "$old/tree" "$tag"
new=$(pwd)
changes=$(cd "$tools" && go run ./apidiff "$old/tree" "$new")
if [ -z "$changes" ]; then
	echo "tools/apidiff.sh: the exported API is compatible with $tag"
	exit 0
fi
printf 'tools/apidiff.sh: incompatible changes since %s:\n%s\n' "$tag" "$changes" >&2
# The sections of CHANGELOG.md above that of the tag describe what has changed since.
announced=$(awk -v last="${tag#v}" '/^## / { if ($2 == last) exit } /^### Breaking changes$/ { print }' CHANGELOG.md)
case $tag in
v0.*)
	if [ -n "$announced" ]; then
		echo "They are announced in CHANGELOG.md: the next version must be a minor version." >&2
		exit 0
	fi
	echo "Keep the API compatible, or describe them in CHANGELOG.md under \"### Breaking changes\"." >&2
	;;
*)
	echo "Keep the API compatible. Only a new major version, which has another module path, can break it." >&2
	;;
esac
exit 1
