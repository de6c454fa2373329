#!/bin/sh
# Usage: tools/rename.sh MODULE
# Changes the path of the module, and of all nested modules, in every file that git tracks. "make rename" runs it.
set -eu
new=${1-}
old=$(sed -n 's/^module //p' go.mod)
case $new in
"" | "$old")
	echo "make rename: set MODULE to the new path, for example MODULE=example.com/other/name" >&2
	exit 1
	;;
*[!A-Za-z0-9./_~-]* | /* | */ | *//* | *@*)
	echo "make rename: $new is not a module path" >&2
	exit 1
	;;
esac

# The path ends where a word ends. In a regular expression, only its dots are special.
pattern=$(printf '%s\n' "$old" | sed 's/\./\\./g')
git grep -lzIF -e "$old" | xargs -0 sed -i.before-rename "s|$pattern\([^A-Za-z0-9_-]\)|$new\1|g; s|$pattern\$|$new|"
find . -name '*.before-rename' -type f -exec rm {} +

# Imports and requirements are sorted by path.
git grep -lzIF -e "$new" -- '*.go' | xargs -0 gofmt -w
git ls-files -- '*go.mod' | while IFS= read -r file; do
	go mod edit -fmt "$file"
done
