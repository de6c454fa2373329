#!/bin/sh
# Usage: tools/rename.sh NAME=VALUE...
# Replaces the values of tools/project.mk in every file that git tracks. A value that is not given, or that is equal to
# the one in the file, is kept. "make rename" runs it.
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

# replace OLD NEW replaces OLD where it begins and ends like a path. In a regular expression, only its dots are special.
replace() {
	git grep -qIF -e "$1" || return 0
	pattern=$(printf '%s\n' "$1" | sed 's/\./\\./g')
	between="s|\([^A-Za-z0-9._-]\)$pattern\([^A-Za-z0-9_-]\)|\1$2\2|g" # twice, because matches do not overlap
	git grep -lzIF -e "$1" | xargs -0 sed -i.before-rename -e "$between" -e "$between" \
		-e "s|^$pattern\([^A-Za-z0-9_-]\)|$2\1|" -e "s|\([^A-Za-z0-9._-]\)$pattern\$|\1$2|" -e "s|^$pattern\$|$2|"
	find . -name '*.before-rename' -type f -exec rm {} +
}

changed=
for argument in "$@"; do # all are checked before the first one is replaced
	name=${argument%%=*}
	new=${argument#*=}
	old=$(value_of "$name")
	[ -n "$old" ] || fail "$values has no $name"
	[ "$new" != "$old" ] || continue
	case $new in
	"" | *[!A-Za-z0-9./_~:@-]*) fail "$new is not a value for $name" ;;
	esac
	case $name=$new in
	MAINTAINERS=@* | ADVISORIES=https://*) ;;
	MAINTAINERS=* | ADVISORIES=*) fail "$name must begin like $old, not $new" ;;
	MODULE=*[:@]* | *=/* | */ | *//*) fail "$new is not a path for $name" ;;
	RELEASE_*=*@* | RELEASE_*=*/*:*) fail "$name has no tag and no digest, unlike $new" ;;
	esac
	changed="$changed $argument"
done
[ -n "$changed" ] || fail "set one of these to a new value, for example MODULE=example.com/other/name:
$(sed -n 's/ := / is /p' "$values")"

# A value can contain another one. Each is therefore first replaced by a token, and longer ones before shorter ones.
longest=$(sed -n 's/ := / /p' "$values" | awk '{ print length($2), $1 }' | sort -rn | awk '{ print $2 }')
former=$(cat "$values")
for name in $longest; do
	old=$(printf '%s\n' "$former" | sed -n "s|^$name := ||p")
	case $name$changed in
	ADVISORIES*\ ADVISORIES=*) ;;
	ADVISORIES*\ MODULE=*) continue ;; # it follows the module path
	esac
	replace "$old" "VALUE-OF-$name"
done
for name in $longest; do
	new=$(printf '%s\n' "$former" | sed -n "s|^$name := ||p")
	for argument in $changed; do
		case $argument in
		"$name="*) new=${argument#*=} ;;
		esac
	done
	replace "VALUE-OF-$name" "$new"
done

# Imports and requirements are sorted by path.
module=$(value_of MODULE)
git grep -lzIF -e "$module" -- '*.go' | xargs -0 gofmt -w
git ls-files -- '*go.mod' | while IFS= read -r file; do
	go mod edit -fmt "$file"
done
