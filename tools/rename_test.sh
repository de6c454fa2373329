#!/bin/sh
# Tests "make rename" in a copy of the files that git tracks. It needs no network, only modules that have been downloaded.
set -eu
export GOPROXY=off GOFLAGS= CGO_ENABLED=0
new=example.com/another-owner/name
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 tar -cf - | tar -xf - -C "$copy"
cd "$copy"
git init -q
git add -A

fail() {
	echo "tools/rename_test.sh: $1" >&2
	exit 1
}

former=$(sed -n 's/^[A-Z_]* := //p' tools/project.mk)
for invalid in MODULE=/a MODULE=a//b MODULE= RELEASE_IMAGE=https://example.com/image RELEASE_IMAGE=example.com/a/ \
	RELEASE_IMAGE=example.com/a:tag RELEASE_CHARTS=/a "MAINTAINERS=@a b" MAINTAINERS=a ADVISORIES=a UNKNOWN=value; do
	if tools/rename.sh MODULE="$new" "$invalid" 2>/dev/null; then fail "$invalid was accepted"; fi
done
git diff --quiet || fail "refused values have changed files"
if make -s rename 2>/dev/null; then fail "renamed without a new value"; fi
make -s rename MODULE="$new" MAINTAINERS=@another-owner/team ADVISORIES=https://example.com/report \
	RELEASE_IMAGE=registry.example.com/image RELEASE_CHARTS=registry.example.com/charts
for value in $former; do
	# The name of the owner must not be left either, for example in a path that is written in parts.
	if git grep -nIF -e "${value%/*}"; then fail "these lines contain the former value $value"; fi
done
for value in @another-owner/team https://example.com/report; do
	git grep -qIF -e "$value" -- .github || fail ".github does not contain $value"
done
[ -z "$(gofmt -l .)" ] || fail "not formatted: $(gofmt -l .)"
git ls-files '*go.mod' ':!*/testdata/*' | while IFS= read -r file; do
	(
		cd "$(dirname "$file")"
		module=$(go list -m)
		case $module in
		"$new" | "$new"/*) ;;
		*) fail "$file has the module path $module" ;;
		esac
		# With -e, modules that have not been downloaded are not an error.
		missing=$(go list -e -deps -f '{{if .Error}}{{.ImportPath}}{{end}}' ./... 2>/dev/null | grep -F "$new" || true)
		[ -z "$missing" ] || fail "$file: packages not found: $missing"
	)
done
go vet ./dynamiccontroller/internal/fairqueue

# Values can contain one another, also new ones the former ones.
expect() {
	grep -qxF -e "$1 := $2" tools/project.mk || fail "$1 is not $2: $(cat tools/project.mk)"
}
make -s rename RELEASE_IMAGE=example.com/engine RELEASE_CHARTS=example.com/engine/charts
make -s rename RELEASE_IMAGE=example.com/image MODULE=example.com/third ADVISORIES="https://$new/issues"
expect RELEASE_IMAGE example.com/image
expect RELEASE_CHARTS example.com/engine/charts
expect MODULE example.com/third
expect ADVISORIES "https://$new/issues"
make -s rename ADVISORIES=https://example.com/third/advisories
make -s rename MODULE=example.com/fourth
expect ADVISORIES https://example.com/fourth/advisories
