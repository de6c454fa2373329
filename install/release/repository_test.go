package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	version   = "v0.1.0"
	changelog = "# Changelog\n\n## Unreleased\n\n- later\n\n## 0.1.0 (2026-11-26)\n\n- [new](docs/new.md#part)\n\n" +
		"## 0.0.1\n\n- old\n"
)

// repository is a git repository of a small program that stands in for the platform, with the real chart and manifests.
type repository struct {
	*testing.T
	dir string
}

func newRepository(t *testing.T) repository {
	t.Helper()
	// Tests must not depend on the configuration of the user.
	for name, value := range map[string]string{
		"GIT_CONFIG_GLOBAL": os.DevNull, "GIT_CONFIG_NOSYSTEM": "1", "SOURCE_DATE_EPOCH": "",
		"GIT_AUTHOR_NAME": "test", "GIT_AUTHOR_EMAIL": "test@example.com", "GIT_AUTHOR_DATE": "2026-11-23T10:00:00Z",
		"GIT_COMMITTER_NAME": "test", "GIT_COMMITTER_EMAIL": "test@example.com",
		"GIT_COMMITTER_DATE": "2026-11-23T10:00:00Z",
	} {
		t.Setenv(name, value)
	}
	r := repository{t, filepath.Join(t.TempDir(), "repository")}
	r.copy("../image/testdata/program", ".")
	r.copy("../charts/dynamic-controller", "install/charts/dynamic-controller")
	r.copy("../kustomize", "install/kustomize")
	r.copy("testdata/nested", "nested")
	r.write("CHANGELOG.md", changelog)
	r.write("LICENSE", "the license\n")
	r.write("go.mod", "module example.com/engine\n\ngo 1.26.0\n")
	r.git("init", "--quiet")
	r.commit()
	return r
}

func (r repository) copy(from, to string) {
	r.Helper()
	if err := os.CopyFS(filepath.Join(r.dir, to), os.DirFS(from)); err != nil {
		r.Fatal(err)
	}
}

func (r repository) write(name, content string) {
	r.Helper()
	file := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		r.Fatal(err)
	}
}

func (r repository) git(args ...string) string {
	r.Helper()
	cmd := exec.CommandContext(r.Context(), "git", args...)
	cmd.Dir = r.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.Fatalf("git %s: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r repository) commit() {
	r.Helper()
	r.git("add", "--all")
	r.git("commit", "--quiet", "--message", "change")
}

// run runs a command of the program, and returns its output.
func (r repository) run(args ...string) (string, error) {
	r.Helper()
	var out, log bytes.Buffer
	err := run(r.Context(), args, &out, &log)
	r.Log(log.String())
	return out.String(), err
}

// build builds a release for the given platforms and returns its directory.
func (r repository) build(targets string, args ...string) string {
	r.Helper()
	dir := filepath.Join(r.TempDir(), "release")
	args = append([]string{"build", "--source", r.dir, "--version", version, "--output", dir, "--targets", targets,
		"--repository", "registry.example.com/engine/platform"}, args...)
	if _, err := r.run(args...); err != nil {
		r.Fatal(err)
	}
	return dir
}

// requireError runs a command that must fail with an error that contains a text.
func (r repository) requireError(want string, args ...string) {
	r.Helper()
	if _, err := r.run(args...); err == nil || !strings.Contains(err.Error(), want) {
		r.Errorf("%s: got the error %v, want %q", args, err, want)
	}
}
