package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/dynamic-controller/engine/install/internal/platform"
)

const version = "v1.2.3"

// buildProgram builds an image of a small program that stands in for the platform. It returns the output directory.
func buildProgram(t *testing.T, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	var log bytes.Buffer
	err := run(t.Context(), append([]string{"--source", "testdata/program", "--output", dir, "--version", version,
		"--commit", "abcdef", "--date", "2026-11-23T10:00:00+01:00"}, args...), &log)
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	return dir
}

// readIndex returns the only image of a layout.
func readIndex(t *testing.T, dir string) v1.ImageIndex {
	t.Helper()
	index, err := layout.ImageIndexFromPath(filepath.Join(dir, "oci"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("got the manifest %+v (error %v)", manifest, err)
	}
	if got := manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; got != version {
		t.Errorf("the image has the name %q", got)
	}
	image, err := index.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// readFiles returns the files of an image, which belong to root.
func readFiles(t *testing.T, image v1.Image) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	content := mutate.Extract(image)
	defer content.Close()
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Gid != 0 || header.Mode&0o222 != 0 {
			t.Errorf("%s has the mode %o and the owner %d:%d", header.Name, header.Mode, header.Uid, header.Gid)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestImage_HasBothArchitectures(t *testing.T) {
	dir := buildProgram(t)
	index := readIndex(t, dir)
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if got := manifest.Annotations["org.opencontainers.image.revision"]; got != "abcdef" {
		t.Errorf("the revision is %q", got)
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for _, descriptor := range manifest.Manifests {
		arch := descriptor.Platform.Architecture
		image, err := index.Image(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.OS != "linux" || config.Architecture != arch || config.Config.User != "65532:65532" ||
			len(config.Config.Entrypoint) != 1 || config.Config.Entrypoint[0] != "/dynamic-controller" {
			t.Errorf("%s: the configuration is %+v", arch, config)
		}
		files := readFiles(t, image)
		requireStatic(t, files["dynamic-controller"], machines[arch])
		delete(machines, arch)
		sbom, err := os.ReadFile(filepath.Join(dir, fileName(arch)+platform.SBOMSuffix))
		if err != nil || !bytes.Equal(sbom, files["sbom.cdx.json"]) || len(files) != 2 {
			t.Errorf("%s: the image has %d files, and its SBOM differs from the one next to the image (error %v)", arch,
				len(files), err)
		}
		loaded, err := tarball.ImageFromPath(filepath.Join(dir, fileName(arch)+".tar"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := readFiles(t, loaded); !bytes.Equal(got["dynamic-controller"], files["dynamic-controller"]) {
			t.Errorf("%s: the archive for docker load has another binary", arch)
		}
		if arch == runtime.GOARCH {
			requireVersion(t, files["dynamic-controller"], version+" abcdef "+arch)
		}
	}
	if len(machines) > 0 {
		t.Errorf("the image does not have %v", machines)
	}
}

// requireStatic checks that a binary runs without other files and contains no paths from this machine.
func requireStatic(t *testing.T, content []byte, machine elf.Machine) {
	t.Helper()
	binary, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	if binary.Machine != machine {
		t.Errorf("the machine is %s, want %s", binary.Machine, machine)
	}
	for _, p := range binary.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary is not static: it has a %s", p.Type)
		}
	}
	working, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(content, []byte(working)) {
		t.Error("the binary contains paths from this machine")
	}
}

func requireVersion(t *testing.T, binary []byte, want string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, binary, 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), file).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("the binary printed %q (error %v), want %q", out, err, want)
	}
}

func TestImage_IsReproducible(t *testing.T) {
	digests := map[v1.Hash]bool{}
	for range 2 {
		digest, err := readIndex(t, buildProgram(t)).Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests[digest] = true
	}
	if len(digests) != 1 {
		t.Errorf("two builds have the digests %v", digests)
	}
	dir := buildProgram(t, "--version", "v1.2.3", "--date", "2026-11-24T10:00:00Z")
	if digest, err := readIndex(t, dir).Digest(); err != nil || digests[digest] {
		t.Errorf("the image of another commit has the same digest (error %v)", err)
	}
}

func TestImage_CanBePushed(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	to := strings.TrimPrefix(server.URL, "http://") + "/platform/dynamic-controller:" + version
	dir := buildProgram(t, "--push", to)
	tag, err := name.NewTag(to)
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Index(tag, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(pushed); err != nil {
		t.Error(err)
	}
	got, err1 := pushed.Digest()
	want, err2 := readIndex(t, dir).Digest()
	if err := errors.Join(err1, err2); err != nil || got != want {
		t.Errorf("pushed %s, want %s (error %v)", got, want, err)
	}
}

func TestRun_ReportsInvalidFlags(t *testing.T) {
	for _, test := range []struct{ flag, value, want string }{
		{"--date", "today", "--date: parsing time"},
		{"--version", "v1+dirty", "--version: "},
		{"--push", "registry.example.com/platform", "--push: "},
		{"--architectures", "pdp11", "go build for linux/pdp11"},
		{"--source", "testdata/nothing", "go build for linux/amd64"},
	} {
		args := []string{"--source", "testdata/program", "--output", t.TempDir(), test.flag, test.value}
		if err := run(t.Context(), args, io.Discard); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s=%s: got the error %v, want %q", test.flag, test.value, err, test.want)
		}
	}
}
