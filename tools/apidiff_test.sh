#!/bin/sh
# Tests tools/apidiff.sh in a temporary repository.
set -eu
tools=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 CGO_ENABLED=0
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@example.com GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@example.com
mkdir "$work/repository"
cd "$work/repository"

fail() {
	printf 'tools/apidiff_test.sh: %s\n%s\n' "$1" "$output" >&2
	exit 1
}

# compare RESULT TEXT CASE runs the script, which must succeed (0) or fail (1) and print a text.
compare() {
	result=0
	output=$("$tools/apidiff.sh" 2>&1) || result=$?
	[ "$result" = "$1" ] || fail "$3: got the exit code $result"
	case $output in
	*"$2"*) ;;
	*) fail "$3: the output does not contain \"$2\"" ;;
	esac
}

commit() {
	git add -A
	git commit -q -m change
}

write() {
	mkdir -p "$(dirname "$1")"
	printf 'package %s\n\n%s\n' "$(basename "$(dirname "$1")")" "$2" >"$1"
}

git init -q
printf 'module example.com/engine\n\ngo 1.26.0\n' >go.mod
printf '# Changelog\n\n## 0.1.0\n\n### Breaking changes\n\n- of an earlier version\n' >CHANGELOG.md
write library/library.go 'func Run(name string) {}'
write extra/extra.go 'const Name = ""'
write internal/secret/secret.go 'const Name = ""'
write test/cluster/cluster.go 'const Name = ""'
commit
compare 0 "because there is no tag" "without a tag"

git tag v0.1.0
compare 0 "is compatible with v0.1.0" "no change"

write library/library.go 'func Run(name string) {}
func Stop() {}'
rm -r internal test
commit
compare 0 "is compatible with v0.1.0" "an addition, and changes of packages that are not public"

write library/library.go 'func Run(name string, count int) {}'
rm -r extra
compare 1 "example.com/engine/library: Run: changed" "an incompatible change"
compare 1 "example.com/engine/extra: removed" "a removed package"
compare 1 'under "### Breaking changes"' "an incompatible change that is not announced"

{
	printf '# Changelog\n\n## 0.2.0\n\n### Breaking changes\n\n- Run has a count\n\n'
	sed 1,2d CHANGELOG.md
} >changelog.new
mv changelog.new CHANGELOG.md
compare 0 "the next version must be a minor version" "an incompatible change that is announced"

git tag v1.0.0
compare 1 "Only a new major version" "an incompatible change after 1.0.0"

commit
git clone -q --depth 1 --no-tags "file://$work/repository" "$work/shallow"
cd "$work/shallow"
compare 0 "shallow clone without tags" "a shallow clone"
