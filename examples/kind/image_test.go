package kind

import (
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestImage_HasOneStaticBinary builds the binary with build_image from tools.sh.
func TestImage_HasOneStaticBinary(t *testing.T) {
	s := newFakeCommands(t)
	s.add("docker", engine)
	out, code := s.run(demoPath(s), "sh", "-euc", "cd ../..; . examples/kind/tools.sh; build_image name:tag")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	const dir = "bin/kind/image"
	build := "docker build --quiet --tag name:tag --file examples/kind/Dockerfile " + dir
	if !slices.Contains(s.calls(), build) {
		t.Errorf("got the calls %q, want %q", s.calls(), build)
	}

	want := []string{
		"FROM scratch",
		"COPY dynamic-controller /dynamic-controller",
		"USER 65532:65532",
		`ENTRYPOINT ["/dynamic-controller"]`,
	}
	if got := instructions(t); !slices.Equal(got, want) {
		t.Errorf("the Dockerfile has %q, want %q", got, want)
	}
	files, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil || len(files) != 1 {
		t.Errorf("the context has %v, %v", files, err)
	}
	binary, err := elf.Open(filepath.Join(root, dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	for _, p := range binary.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary is not static: it has a %s", p.Type)
		}
	}
	if libraries, err := binary.ImportedLibraries(); err == nil && len(libraries) > 0 {
		t.Errorf("the binary imports %q", libraries)
	}
}

// instructions returns the lines of the Dockerfile without comments.
func instructions(t *testing.T) (all []string) {
	t.Helper()
	for line := range strings.Lines(string(read(t, "Dockerfile"))) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}
