package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTag_NestedModulesRequireTheVersion(t *testing.T) {
	r := newRepository(t)
	r.write("library/library.go", "// Package library is part of the engine.\npackage library\n\n"+
		"// Name is a name.\nconst Name = \"engine\"\n")
	r.write("cmd/dynamic-controller/go.mod", `module example.com/engine/cmd/dynamic-controller

go 1.26.0

require (
	example.com/engine v0.0.0-00010101000000-000000000000
	example.com/engine/nested v0.0.0-00010101000000-000000000000
)

replace (
	example.com/engine => ../..
	example.com/engine/nested => ../../nested
)
`)
	r.write("cmd/dynamic-controller/main.go", "package main\n\nimport (\n\t\"example.com/engine/library\"\n\t"+
		"\"example.com/engine/nested\"\n)\n\nfunc main() { println(library.Name, nested.Name) }\n")
	r.commit()
	head := r.git("rev-parse", "HEAD")
	tag := []string{"tag", "--source", r.dir, "--version", version, "--modules", "nested,cmd/dynamic-controller"}
	r.requireError("the tag v0.1.0 does not exist", append(tag, "--check")...)
	out, err := r.run(tag...)
	if err != nil || !strings.Contains(out, "git push origin nested/v0.1.0 cmd/dynamic-controller/v0.1.0\n"+
		"    git push origin v0.1.0\n") {
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
	requireVersions(t, r, "nested", "example.com/engine")
	requireVersions(t, r, "cmd/dynamic-controller", "example.com/engine", "example.com/engine/nested")
	requireImport(t, r)
	r.requireError("the tag v0.1.0 exists already", tag...)

	if _, err := r.run(append(tag, "--check")...); err != nil {
		t.Error(err)
	}
	r.git("tag", "--force", "nested/v0.1.0", "v0.1.0^{commit}")
	r.requireError("the tag nested/v0.1.0 is for the commit ", append(tag, "--check")...)
	r.git("tag", "--delete", "nested/v0.1.0")
	r.requireError("the tag nested/v0.1.0 does not exist", append(tag, "--check")...)
}

// requireVersions checks that the tagged go.mod of a nested module requires the version of other modules, and replaces
// nothing.
func requireVersions(t *testing.T, r repository, dir string, paths ...string) {
	t.Helper()
	mod := r.git("show", dir+"/"+version+":"+dir+"/go.mod")
	if strings.Contains(mod, "replace") {
		t.Errorf("the go.mod of %s replaces modules:\n%s", dir, mod)
	}
	for _, path := range paths {
		if !strings.Contains(mod, path+" "+version) {
			t.Errorf("the go.mod of %s does not require %s %s:\n%s", dir, path, version, mod)
		}
	}
}

// requireImport builds a program that imports the nested module from a proxy, and the nested program.
func requireImport(t *testing.T, r repository) {
	s := newStranger(t, r, "example.com/engine", "nested", "cmd/dynamic-controller")
	s.write("main.go", "package main\n\nimport \"example.com/engine/nested\"\n\nfunc main() { println(nested.Name) }\n")
	s.run("go", "get", "example.com/engine/nested@"+version)
	s.run("go", "mod", "tidy")
	// The tagged go.sum has the checksums that the go command computes from the proxy.
	tagged := r.git("show", "nested/v0.1.0:nested/go.sum")
	computed := string(read(t, s.dir, "go.sum"))
	lines := strings.Split(tagged, "\n")
	for _, line := range lines {
		if !strings.Contains(computed, line+"\n") {
			t.Errorf("go.sum of the nested module has the line %q, want one of\n%s", line, computed)
		}
	}
	if len(lines) != 2 {
		t.Errorf("go.sum of the nested module is\n%s", tagged)
	}
	// A program uses its own go.sum, which must have the checksums of both other modules.
	s.run("go", "install", "example.com/engine/cmd/dynamic-controller@"+version)
	if err := os.CopyFS(filepath.Join(s.dir, "clone"), os.DirFS(s.modules+
		"/example.com/engine/cmd/dynamic-controller@"+version)); err != nil {
		t.Fatal(err)
	}
	s.run("go", "build", "-C", "clone", "-mod=readonly", "-o", os.DevNull, ".")
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

func TestTag_RefusesAModuleThatPrecedesAReplacedOne(t *testing.T) {
	r := newRepository(t)
	r.write("first/go.mod", "module example.com/engine/first\n\ngo 1.26.0\n\n"+
		"require example.com/engine/nested v0.0.0\n\nreplace example.com/engine/nested => ../nested\n")
	r.commit()
	r.requireError("replaces example.com/engine/nested, which is not tagged before it",
		"tag", "--source", r.dir, "--version", version, "--modules", "first,nested")
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
