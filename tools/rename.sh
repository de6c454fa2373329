#!/bin/sh
# Usage: tools/rename.sh NAME=VALUE...
# Replaces values of tools/project.mk in every file that git tracks. Values that are equal to those in the file, and
# longer ones that contain a former value, are kept or follow from the others. "make rename" runs it.
set -eu
values=tools/project.mk

fail() {
	echo "make rename: $1" >&2
	exit 1
}

# value_of NAME is the value in the file.
value_of() {
	sed -n "s|^$1 := ||p" "$values"
}

# replace OLD NEW replaces whole words only. In a regular expression, only the dots of the values are special.
replace() {
	pattern=$(printf '%s\n' "$1" | sed 's/\./\\./g')
	git grep -lzIF -e "$1" | xargs -0 sed -i.before-rename "s|$pattern\([^A-Za-z0-9_-]\)|$2\1|g; s|$pattern\$|$2|"
	find . -name '*.before-rename' -type f -exec rm {} +
}

changed=
for argument in "$@"; do # all are checked before the first one is replaced
	name=${argument%%=*}
	new=${argument#*=}
	old=$(value_of "$name")
	[ -n "$old" ] || fail "$values has no $name"
	case $new in
	"" | *[!A-Za-z0-9./_~:@-]* | *//*//*) fail "$new is not a value for $name" ;;
	"$old") continue ;;
	esac
	case $name=$new in
	MODULE=/* | MODULE=*/ | MODULE=*//* | MODULE=*[:@]*) fail "$new is not a module path" ;;
	RELEASE_*=*/*:* | RELEASE_*=*@* | RELEASE_*=*//*) fail "$name is a repository without scheme, tag and digest, not $new" ;;
	esac
	changed="$changed $argument"
done
[ -n "$changed" ] || fail "set one of these to a new value, for example MODULE=example.com/other/name:
$(sed -n 's/ := / is /p' "$values")"

# The module path comes last, because other values can contain it.
module=
for argument in $changed; do
	name=${argument%%=*}
	case $name in
	MODULE) module=${argument#*=} ;;
	*) replace "$(value_of "$name")" "${argument#*=}" ;;
	esac
done
[ -n "$module" ] || exit 0
replace "$(value_of MODULE)" "$module"

# Imports and requirements are sorted by path.
git grep -lzIF -e "$module" -- '*.go' | xargs -0 gofmt -w
git ls-files -- '*go.mod' | while IFS= read -r file; do
	go mod edit -fmt "$file"
done
