#!/bin/sh
# Runs "go build -o $OUTPUT ARGS" and prints how many packages have been compiled. A first build compiles hundreds of
# packages, which takes minutes. On a terminal, one line is updated. Otherwise, a line is printed for each tenth. Other
# output of go, such as compiler errors, is printed to stderr.
set -u
# Packages in the build cache are not compiled. The same flags must be used, because they are part of the cache's keys.
total=$(go list -deps -f '{{if .Stale}}{{.ImportPath}}{{end}}' "$@" | grep -c .)
terminal=0
[ -t 1 ] && terminal=1

# report counts the packages that go names with -v, and exits with the exit code of go. It is not written in awk, because
# some versions of awk read their input in large blocks.
report() {
	code=1 compiled=0 tenths=0 open=0
	while IFS= read -r line; do
		case $line in
		"exit "[0-9]*)
			code=${line#exit }
			;;
		*[\ \#]* | "")
			[ $open = 1 ] && echo
			open=0
			printf '%s\n' "$line" >&2
			;;
		*)
			compiled=$((compiled + 1))
			[ $total -lt $compiled ] && total=$compiled
			if [ $terminal = 1 ]; then
				printf '\r  %d of %d packages compiled' $compiled $total
				open=1
			elif [ $((10 * compiled / total)) -gt $tenths ]; then
				printf '  %d of %d packages compiled\n' $compiled $total
			fi
			tenths=$((10 * compiled / total))
			;;
		esac
	done
	[ $open = 1 ] && echo
	exit "$code"
}

{
	go build -v -o "$OUTPUT" "$@" 2>&1
	echo "exit $?"
} | report
