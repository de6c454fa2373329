package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func TestTag_NestedModuleRequiresTheVersion(t *testing.T) {
	r := newRepository(t)
	r.write("library/library.go", "// Package library is part of the engine.\npackage library\n\n"+
		"// Name is a name.\nconst Name = \"engine\"\n")
	r.commit()
	head := r.git("rev-parse", "HEAD")
	tag := []string{"tag", "--source", r.dir, "--version", version, "--modules", "nested"}
	out, err := r.run(tag...)
	if err != nil || !strings.Contains(out, "git push origin v0.1.0 nested/v0.1.0\n") {
		t.Fatalf("tag printed %q (error %v)", out, err)
	}
	if got := r.git("rev-parse", "v0.1.0^{commit}"); got != head {
		t.Errorf("v0.1.0 is %s, want %s", got, head)
	}
	if got := r.git("rev-parse", "nested/v0.1.0^{commit}^"); got != head {
		t.Errorf("the commit before nested/v0.1.0 is %s, want %s", got, head)
	}
	if got := r.git("rev-parse", "HEAD") + r.git("status", "--porcelain") + r.git("worktree", "prune", "-v"); got != head {
		t.Errorf("the repository has changed: %s", got)
	}
	if got := r.git("worktree", "list"); strings.Contains(got, "\n") {
		t.Errorf("the temporary worktree still exists: %s", got)
	}
	mod := r.git("show", "nested/v0.1.0:nested/go.mod")
	if strings.Contains(mod, "replace") || !strings.Contains(mod, "require example.com/engine v0.1.0") {
		t.Errorf("the go.mod of the nested module is\n%s", mod)
	}
	requireImport(t, r)
	r.requireError("the tag v0.1.0 exists already", tag...)
}

// requireImport builds a program that imports the nested module from a proxy.
func requireImport(t *testing.T, r repository) {
	proxy := t.TempDir()
	publish(t, r, proxy, "example.com/engine", version, "")
	publish(t, r, proxy, "example.com/engine/nested", "nested/"+version, "nested")
	dir := t.TempDir()
	for file, content := range map[string]string{
		"go.mod":  "module example.com/program\n\ngo 1.26.0\n\nrequire example.com/engine/nested v0.1.0\n",
		"main.go": "package main\n\nimport \"example.com/engine/nested\"\n\nfunc main() { println(nested.Name) }\n",
	} {
		change(t, filepath.Join(dir, file), []byte(content))
	}
	cmd := exec.CommandContext(t.Context(), "go", "mod", "tidy")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOPROXY=file://"+filepath.ToSlash(proxy), "GONOSUMDB=*", "GOFLAGS=-modcacherw",
		"GOMODCACHE="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// The tagged go.sum has the checksums that the go command computes from the proxy.
	tagged := r.git("show", "nested/v0.1.0:nested/go.sum")
	computed := string(read(t, dir, "go.sum"))
	lines := strings.Split(tagged, "\n")
	for _, line := range lines {
		if !strings.Contains(computed, line+"\n") {
			t.Errorf("go.sum of the nested module has the line %q, want one of\n%s", line, computed)
		}
	}
	if len(lines) != 2 {
		t.Errorf("go.sum of the nested module is\n%s", tagged)
	}
}

// publish adds a module to a directory with the files of a module proxy.
func publish(t *testing.T, r repository, proxy, path, tag, subdir string) {
	t.Helper()
	dir := filepath.Join(proxy, filepath.FromSlash(path), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	err = zip.CreateFromVCS(f, module.Version{Path: path, Version: version}, r.dir, tag, subdir)
	if closeErr := f.Close(); err != nil || closeErr != nil {
		t.Fatal(err, closeErr)
	}
	change(t, filepath.Join(dir, version+".mod"), []byte(r.git("show", tag+":"+filepath.Join(subdir, "go.mod"))+"\n"))
	change(t, filepath.Join(dir, version+".info"), []byte(`{"Version": "`+version+`"}`))
	change(t, filepath.Join(dir, "list"), []byte(version+"\n"))
}

func TestTag_RefusesAVersionThatIsNotReleased(t *testing.T) {
	r := newRepository(t)
	r.write("CHANGELOG.md", "## 0.1.0 (not released yet)\n")
	tag := []string{"tag", "--source", r.dir, "--version", version, "--modules", "nested"}
	r.requireError("the working tree has changes", tag...)
	r.commit()
	r.requireError("CHANGELOG.md says that v0.1.0 is not released", tag...)
	if got := r.git("tag"); got != "" {
		t.Errorf("got the tags %s", got)
	}
}

func TestAddLines_KeepsTheOrder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "go.sum")
	change(t, file, []byte("a\nc\ne\n"))
	if err := addLines(file, []string{"b\n", "d\n", "f\n"}); err != nil {
		t.Fatal(err)
	}
	if got := string(read(t, file)); got != "a\nb\nc\nd\ne\nf\n" {
		t.Errorf("got %q", got)
	}
}
