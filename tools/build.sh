#!/bin/sh
# Runs "go build -o $OUTPUT ARGS" and prints how many packages have been compiled. A first build compiles hundreds of
# packages, which takes minutes. On a terminal, one line is updated. Otherwise, a line is printed for each tenth.
set -u
# Packages in the build cache are not compiled. The same flags must be used, because they are part of the cache's keys.
total=$(go list -deps -f '{{if .Stale}}{{.ImportPath}}{{end}}' "$@" | grep -c .)
terminal=0
[ -t 1 ] && terminal=1
# With -v, go prints the name of each package that it compiles.
{
	go build -v -o "$OUTPUT" "$@" 2>&1
	echo "exit $?"
} | awk -v total="$total" -v terminal="$terminal" '
	/^exit [0-9]+$/ { code = $2; next }
	!/^[^ #]+$/ { if (terminal && built) printf "\n"; print; built = 0; fflush(); next }
	{
		done++
		if (total < done) total = done
		tenths = int(10 * done / total)
		if (terminal) printf "\r  %d of %d packages compiled", done, total
		else if (tenths > shown) printf "  %d of %d packages compiled\n", done, total
		shown = tenths
		built = 1
		fflush()
	}
	END { if (terminal && built) printf "\n"; exit code }
'
