package main

import (
	"archive/tar"
	"bytes"
	_ "embed"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

//go:embed testdata/previous
var previousFile string

// previousCommit returns the commit or the tag in testdata/previous.
func previousCommit(t *testing.T) string {
	t.Helper()
	for line := range strings.Lines(previousFile) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return line
		}
	}
	t.Fatal("testdata/previous contains no commit")
	return ""
}

// buildPrevious builds the program of the previous version, and returns its path. The program stays in the directory
// bin for later runs. Compiling delays other tests: call buildPrevious before the test runs in parallel with them.
func buildPrevious(t *testing.T) (program string) {
	t.Helper()
	const root = "../.."
	git := func(args ...string) ([]byte, error) {
		return exec.Command("git", append([]string{"-C", root}, args...)...).Output()
	}
	previous := previousCommit(t)
	resolved, err := git("rev-parse", "--verify", "--quiet", previous+"^{commit}")
	if err != nil { // in a shallow clone
		if _, err = git("fetch", "--quiet", "--depth=1", "origin", previous); err == nil {
			resolved, err = git("rev-parse", "--verify", "--quiet", previous+"^{commit}")
		}
	}
	if err != nil {
		t.Fatalf("the clone lacks the previous version %s, and it cannot be fetched: git fetch --unshallow", previous)
	}
	commit := strings.TrimSpace(string(resolved))
	if head, err := git("rev-parse", "HEAD"); err != nil || strings.TrimSpace(string(head)) == commit {
		t.Fatalf("the previous version %s is the version under test (%v)", previous, err)
	}
	bin, err := filepath.Abs(filepath.Join(root, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(bin, "dynamic-controller-"+commit)
	if _, err := os.Stat(program); err == nil {
		return program
	}
	archive, err := git("archive", commit)
	if err != nil {
		t.Fatalf("git archive: %v", err)
	}
	dir := t.TempDir()
	if err := extract(dir, archive); err != nil {
		t.Fatalf("extract %s: %v", previous, err)
	}
	built := filepath.Join(dir, "built")
	// In older versions, the program belongs to the module of the library.
	build := exec.Command("go", "build", "-o", built, ".")
	build.Dir = filepath.Join(dir, "cmd", "dynamic-controller")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", previous, err, out)
	}
	content, err := os.ReadFile(built)
	if err == nil {
		err = errors.Join(os.MkdirAll(bin, 0o755), os.WriteFile(program+".new", content, 0o755))
	}
	if err == nil {
		err = os.Rename(program+".new", program)
	}
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// extract writes the regular files of a tar archive to a directory.
func extract(dir string, archive []byte) error {
	for files := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(files)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, header.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
	}
}
