package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// stranger is a user with a program of their own, who has no copy of the repository.
type stranger struct {
	*testing.T
	dir     string // of the program
	modules string // the module cache
	env     []string
}

// newStranger returns a user of a proxy with the tagged modules. Other modules come from the module cache, or the usual
// proxy.
func newStranger(t *testing.T, r repository, root string, nested ...string) *stranger {
	t.Helper()
	proxy := t.TempDir()
	publish(t, r, proxy, root, version, "")
	for _, dir := range nested {
		publish(t, r, proxy, root+"/"+dir, dir+"/"+version, dir)
	}
	usual := strings.Fields(output(t, ".", "go", "env", "GOMODCACHE", "GOPROXY"))
	s := &stranger{T: t, dir: t.TempDir(), modules: t.TempDir()}
	s.env = append(os.Environ(), "GOPROXY=file://"+proxy+",file://"+usual[0]+"/cache/download,"+usual[1],
		"GONOSUMDB="+root, "GOFLAGS=-modcacherw", "GOMODCACHE="+s.modules, "GOBIN="+t.TempDir(), "GOWORK=off",
		"CGO_ENABLED=0")
	s.write("go.mod", "module example.com/stranger\n\ngo 1.26.0\n")
	return s
}

func (s *stranger) write(name, content string) {
	s.Helper()
	change(s.T, filepath.Join(s.dir, name), []byte(content))
}

func (s *stranger) run(command ...string) string {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), command[0], command[1:]...)
	cmd.Dir, cmd.Env = s.dir, s.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
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

// output returns the output of a command.
func output(t *testing.T, dir string, command ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return string(out)
}

// TestModules_StrangersCanUseWhatIsTagged tags a copy of this repository.
func TestModules_StrangersCanUseWhatIsTagged(t *testing.T) {
	r := newRepository(t)
	r.git("rm", "-r", "--quiet", ".")
	files := output(t, root, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	for file := range strings.SplitSeq(files, "\x00") {
		if content, err := os.ReadFile(filepath.Join(root, file)); err == nil { // not deleted
			r.write(file, string(content))
		}
	}
	r.write("CHANGELOG.md", changelog)
	r.commit()
	if _, err := r.run("tag", "--source", r.dir, "--version", version); err != nil {
		t.Fatal(err)
	}
	engine := modfile.ModulePath(read(t, root, "go.mod"))
	nested := []string{"test", "cmd/dynamic-controller", "examples/controller-runtime"}
	for _, dir := range nested {
		requireVersions(t, r, dir, engine)
	}

	s := newStranger(t, r, engine, nested...)
	s.write("main.go", importing(strconv.Quote(engine+"/dynamiccontroller"), strconv.Quote(engine+"/handlers/children")))
	s.run("go", "get", engine+"@"+version)
	s.run("go", "mod", "tidy")
	s.run("go", "list", "-deps", ".")
	if got := s.run("go", "list", "-m", "all"); !strings.Contains(got, engine+" "+version+"\n") ||
		strings.Contains(got, engine+"/") {
		t.Errorf("the program requires the modules\n%s", got)
	}

	// All packages of the program are found, as "go install" requires. Compiling them takes a minute.
	tool := engine + "/cmd/dynamic-controller"
	s = &stranger{T: t, dir: t.TempDir(), modules: s.modules, env: s.env}
	s.write("go.mod", "module example.com/stranger\n\ngo 1.26.0\n")
	s.run("go", "get", "-tool", tool+"@"+version)
	s.run("go", "list", "-deps", tool)
	s.run("go", "get", engine+"/examples/controller-runtime/adapter@"+version)
}

// importing returns a program that imports packages.
func importing(packages ...string) string {
	return fmt.Sprintf("package main\n\nimport (\n\t_ %s\n)\n\nfunc main() {}\n",
		strings.Join(packages, "\n\t_ "))
}

// A program that imports the library keeps the versions of its modules, although the platform requires newer ones.
func TestModules_LibraryRaisesNoVersions(t *testing.T) {
	s := &stranger{T: t, dir: t.TempDir(), env: append(os.Environ(), "GOWORK=off", "GOFLAGS=")}
	s.write("go.mod", `module example.com/stranger

go 1.26.0

require (
	github.com/google/cel-go v0.26.0
	github.com/spf13/cobra v1.9.1
	go.opentelemetry.io/otel v1.38.0
	google.golang.org/grpc v1.75.0
	k8s.io/client-go `+requiredVersion(t, "k8s.io/client-go")+`
)
`)
	s.write("main.go", importing(`"github.com/google/cel-go/common/operators"`, `"github.com/spf13/cobra"`,
		`"go.opentelemetry.io/otel/attribute"`, `"google.golang.org/grpc/codes"`, `"k8s.io/client-go/dynamic"`))
	s.run("go", "mod", "tidy")
	before := s.versions()
	engine := modfile.ModulePath(read(t, root, "go.mod"))
	var public []string
	for _, p := range strings.Fields(output(t, root, "go", "list", "./...")) {
		if !strings.Contains(p, "/internal/") {
			public = append(public, strconv.Quote(p))
		}
	}
	s.write("library.go", strings.TrimSuffix(importing(public...), "\nfunc main() {}\n"))
	dir, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	s.run("go", "mod", "edit", "-require="+engine+"@v0.0.0", "-replace="+engine+"="+dir)
	s.run("go", "mod", "tidy")
	after := s.versions()
	if len(public) < 8 || after[engine] == "" {
		t.Fatalf("the program imports %v of the modules %v", public, after)
	}
	for path, version := range before {
		if after[path] != version {
			t.Errorf("the library changes %s from %s to %q", path, version, after[path])
		}
	}
}

// versions returns the versions of all modules that the program requires, directly or not.
func (s *stranger) versions() map[string]string {
	s.Helper()
	all := map[string]string{}
	for line := range strings.Lines(s.run("go", "list", "-m", "-f", "{{.Path}} {{.Version}}", "all")) {
		path, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[path] = version
	}
	return all
}

func requiredVersion(t *testing.T, path string) string {
	t.Helper()
	mod, err := modfile.Parse("go.mod", read(t, root, "go.mod"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range mod.Require {
		if r.Mod.Path == path {
			return r.Mod.Version
		}
	}
	t.Fatalf("the library does not require %s", path)
	return ""
}

func TestModules_LibraryRequiresNothingOfThePlatform(t *testing.T) {
	foreign := regexp.MustCompile(`^(google\.golang\.org/(grpc|genproto)|go\.opentelemetry\.io/|` +
		`github\.com/google/cel-go|github\.com/spf13/cobra|` +
		`k8s\.io/(apiserver|apiextensions-apiserver|component-base)|go\.uber\.org/zap|` +
		`sigs\.k8s\.io/controller-runtime)\b`)
	graph := strings.Fields(output(t, root, "go", "mod", "graph"))
	if len(graph) < 100 {
		t.Errorf("the library requires only %v", graph)
	}
	slices.Sort(graph)
	for _, m := range slices.Compact(graph) {
		if foreign.MatchString(m) {
			t.Errorf("the library requires %s, directly or not", m)
		}
	}
}
