package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// runBuild runs build.sh with a program in place of go, which compiles 20 packages and exits with the given code.
func runBuild(t *testing.T, code string) (out string, exitCode int) {
	t.Helper()
	dir := t.TempDir()
	program := `#!/bin/sh
i=0
while [ $i -lt 20 ]; do
	i=$((i + 1))
	echo "example.com/package$i"
	if [ $1 = build ] && [ $i = 5 ]; then echo "# example.com/package5" >&2; echo "a.go:1:1: a problem" >&2; fi
done
[ $1 = list ] || exit ` + code + "\n"
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "../../tools/build.sh", ".")
	cmd.Env = append(os.Environ(), "OUTPUT=unused", "PATH="+dir+":"+os.Getenv("PATH"))
	data, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed):
		exitCode = failed.ExitCode()
	case err != nil:
		t.Fatal(err)
	}
	return string(data), exitCode
}

func TestBuild_ShowsTheProgressAndProblems(t *testing.T) {
	out, code := runBuild(t, "0")
	if n := strings.Count(out, "packages compiled\n"); code != 0 || n != 10 ||
		!strings.HasPrefix(out, "  2 of 20 packages compiled\n") ||
		!strings.HasSuffix(out, "  20 of 20 packages compiled\n") {
		t.Errorf("got exit code %d and output %s", code, out)
	}
	if !strings.Contains(out, "\na.go:1:1: a problem\n") {
		t.Errorf("the problem is missing: %s", out)
	}
	if _, code := runBuild(t, "3"); code != 3 {
		t.Errorf("got exit code %d, want the exit code of go", code)
	}
}
