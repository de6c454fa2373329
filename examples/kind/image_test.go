package kind

import (
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// instructions are the Dockerfile's lines, by their first word.
func instructions(t *testing.T) (all [][2]string) {
	t.Helper()
	for line := range strings.Lines(string(read(t, "Dockerfile"))) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		all = append(all, [2]string{word, rest})
	}
	return all
}

// TestTheImageIsAStaticBinary does what the Dockerfile says, short of the image: it copies what is copied, and builds that
// alone.
func TestTheImageIsAStaticBinary(t *testing.T) {
	src, out := t.TempDir(), t.TempDir()
	ignored := strings.Fields(string(read(t, "Dockerfile.dockerignore")))
	var builds, stages, users []string
	for _, i := range instructions(t) {
		switch fields := strings.Fields(i[1]); i[0] {
		case "FROM":
			stages = append(stages, fields[0])
		case "USER":
			users = append(users, i[1])
		case "COPY":
			if len(stages) > 1 {
				if i[1] != "--from=build /out/dynamic-controller /dynamic-controller" {
					t.Errorf("the image has %s", i[1])
				}
				continue
			}
			for _, from := range fields[:len(fields)-1] {
				if !slices.Contains(ignored, "!"+from) {
					t.Errorf("%s is copied, and Dockerfile.dockerignore keeps it out", from)
				}
				copyTree(t, filepath.Join(root, from), filepath.Join(src, from))
			}
		case "RUN":
			builds = append(builds, i[1])
		}
	}
	if want := []string{"golang:1.26", "scratch"}; !slices.Equal(stages, want) {
		t.Errorf("the stages are from %q, want %q", stages, want)
	}
	if want := []string{"65532:65532"}; !slices.Equal(users, want) {
		t.Errorf("it is run by %q, want %q", users, want)
	}

	// The modules are there already.
	if len(builds) != 2 || builds[0] != "go mod download" {
		t.Fatalf("it runs %q", builds)
	}
	build := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(builds[1], "/out/", out+"/"))
	build.Dir = src
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", builds[1], err, said)
	}
	if runtime.GOOS != "linux" {
		return // what is built here is for another system
	}
	binary, err := elf.Open(filepath.Join(out, name))
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	for _, p := range binary.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it is not static: it has a %s", p.Type)
		}
	}
	if libraries, err := binary.ImportedLibraries(); err == nil && len(libraries) > 0 {
		t.Errorf("it needs %q", libraries)
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, relative)
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o600)
	})
	if err != nil {
		t.Error(err)
	}
}
