package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"golang.org/x/mod/semver"
	"google.golang.org/protobuf/encoding/protojson"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	helm "helm.sh/helm/v4/pkg/registry"
	"sigs.k8s.io/yaml"
)

// targets are the platforms of most tests: one with an image, and one with another format of archives.
var targets = "linux/" + runtime.GOARCH + ",windows/amd64"

// names returns the names of the files in a directory.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestBuild_WritesEverything(t *testing.T) {
	r := newRepository(t)
	dir := r.build(targets)
	linux := "dynamic-controller_v0.1.0_linux_" + runtime.GOARCH
	want := []string{"SHA256SUMS", "blueprint.yaml", "dynamic-controller-0.1.0.tgz", "dynamic-controller_v0.1.0.yaml",
		"dynamic-controller_v0.1.0_image.tar", linux + ".cdx.json", linux + ".tar.gz",
		"dynamic-controller_v0.1.0_windows_amd64.cdx.json", "dynamic-controller_v0.1.0_windows_amd64.zip",
		"provenance.intoto.json", "release-notes.txt"}
	if diff := cmp.Diff(want, names(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if got, want := string(read(t, dir, "release-notes.txt")),
		"- [new](https://example.com/engine/blob/v0.1.0/docs/new.md#part)\n"; got != want {
		t.Errorf("the notes are %q, want %q", got, want)
	}
	if out, err := r.run("verify", "--directory", dir); err != nil || !strings.HasPrefix(out, "9 files") {
		t.Errorf("verify printed %q (error %v)", out, err)
	}
	t.Run("archives", func(t *testing.T) { requireArchives(t, r, dir, linux) })
	t.Run("chart", func(t *testing.T) { requireChart(t, dir) })
	t.Run("manifests", func(t *testing.T) { requireManifests(t, dir) })
	t.Run("krew", func(t *testing.T) { requireKrew(t, dir) })
	t.Run("provenance", func(t *testing.T) { requireProvenance(t, r, dir) })
	t.Run("push", func(t *testing.T) { requirePush(t, r, dir) })
}

// requireArchives checks the files of the archives, and runs the binary for this machine.
func requireArchives(t *testing.T, r repository, dir, linux string) {
	files := untar(t, read(t, dir, linux+".tar.gz"))
	if string(files["LICENSE"]) != "the license\n" || len(files) != 2 {
		t.Errorf("the archive has %d files, and the license %q", len(files), files["LICENSE"])
	}
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, files["dynamic-controller"], 0o700); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "linux" {
		out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
		want := version + " " + r.git("rev-parse", "HEAD") + " " + runtime.GOARCH
		if err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("the binary printed %q (error %v), want %q", out, err, want)
		}
	}
	content := read(t, dir, "dynamic-controller_v0.1.0_windows_amd64.zip")
	archive, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat(archive, "dynamic-controller.exe"); err != nil || len(archive.File) != 2 {
		t.Errorf("the archive for Windows has %d files (error %v)", len(archive.File), err)
	}
}

// untar returns the files of a tar.gz archive.
func untar(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	content, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func requireChart(t *testing.T, dir string) {
	chart, err := loader.LoadFile(filepath.Join(dir, "dynamic-controller-0.1.0.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	image := chart.Values["image"].(map[string]any)
	if chart.Metadata.Version != "0.1.0" || chart.Metadata.AppVersion != version || len(chart.Templates) < 10 ||
		image["repository"] != "registry.example.com/engine/platform" {
		t.Errorf("the chart has the metadata %+v, %d templates and the image %v", chart.Metadata, len(chart.Templates),
			image)
	}
}

func requireManifests(t *testing.T, dir string) {
	content := string(read(t, dir, "dynamic-controller_v0.1.0.yaml"))
	for _, want := range []string{"image: registry.example.com/engine/platform:v0.1.0\n", "kind: Namespace\n",
		"kind: ClusterRole\n"} {
		if !strings.Contains(content, want) {
			t.Errorf("the manifests do not contain %q", want)
		}
	}
}

// requireKrew checks what krew checks when a plugin is installed or added to its index.
func requireKrew(t *testing.T, dir string) {
	manifest := plugin{}
	if err := yaml.UnmarshalStrict(read(t, dir, "blueprint.yaml"), &manifest); err != nil {
		t.Fatal(err)
	}
	spec := manifest.Spec
	if manifest.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || manifest.Kind != "Plugin" ||
		!regexp.MustCompile(`^[\w-]+$`).MatchString(manifest.Metadata.Name) || !semver.IsValid(spec.Version) ||
		spec.ShortDescription == "" || strings.ContainsAny(spec.ShortDescription, "\r\n") ||
		!strings.HasPrefix(spec.Homepage, "https://") || len(spec.Platforms) != 2 {
		t.Errorf("invalid manifest: %+v", manifest)
	}
	sums, err := readChecksums(filepath.Join(dir, checksumsFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range spec.Platforms {
		base, file := filepath.Split(p.URI)
		labels := p.Selector.MatchLabels
		if base != "https://example.com/engine/releases/download/v0.1.0/" || sums[file] != p.SHA256 || p.Bin == "" ||
			!strings.Contains(file, labels["os"]+"_"+labels["arch"]) || len(labels) != 2 {
			t.Errorf("invalid platform: %+v", p)
		}
		if strings.HasSuffix(file, ".tar.gz") && untar(t, read(t, dir, file))[p.Bin] == nil {
			t.Errorf("%s does not contain %s", file, p.Bin)
		}
	}
}

func requireProvenance(t *testing.T, r repository, dir string) {
	statement := &intoto.Statement{}
	if err := protojson.Unmarshal(read(t, dir, provenanceFile), statement); err != nil {
		t.Fatal(err)
	}
	if err := statement.Validate(); err != nil {
		t.Error(err)
	}
	predicate, err := protojson.Marshal(statement.GetPredicate())
	if err != nil {
		t.Fatal(err)
	}
	provenance := &slsa.Provenance{}
	if err := protojson.Unmarshal(predicate, provenance); err != nil {
		t.Fatal(err)
	}
	if err := provenance.Validate(); err != nil {
		t.Error(err)
	}
	if statement.GetType() != "https://in-toto.io/Statement/v1" ||
		statement.GetPredicateType() != "https://slsa.dev/provenance/v1" || len(statement.GetSubject()) != 10 {
		t.Errorf("the statement has the types %s and %s, and %d subjects", statement.GetType(),
			statement.GetPredicateType(), len(statement.GetSubject()))
	}
	dependencies := provenance.GetBuildDefinition().GetResolvedDependencies()
	if source := dependencies[0]; source.GetUri() != "git+https://example.com/engine" ||
		source.GetDigest()["gitCommit"] != r.git("rev-parse", "HEAD") {
		t.Errorf("the source is %v", source)
	}
	std := "pkg:golang/std@" + strings.TrimPrefix(runtime.Version(), "go")
	if !slices.ContainsFunc(dependencies, func(d *intoto.ResourceDescriptor) bool { return d.GetUri() == std }) {
		t.Errorf("the dependencies do not contain %s", std)
	}
	run := provenance.GetRunDetails().GetBuilder()
	if run.GetId() != "https://example.com/engine/blob/v0.1.0/Makefile" || run.GetVersion()["go"] != runtime.Version() {
		t.Errorf("the builder is %v", run)
	}
}

func requirePush(t *testing.T, r repository, dir string) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	to := strings.TrimPrefix(server.URL, "http://") + "/platform/dynamic-controller"
	out, err := r.run("push", "--directory", dir, "--to", to+":"+version)
	if err != nil {
		t.Fatal(err)
	}
	reference, err := name.NewDigest(strings.TrimSpace(out))
	if err != nil || reference.Context().Name() != to {
		t.Fatalf("push printed %q (error %v)", out, err)
	}
	index, err := remote.Index(reference, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	if !strings.Contains(string(read(t, dir, provenanceFile)), reference.DigestStr()[len("sha256:"):]) {
		t.Errorf("the provenance does not contain %s", reference)
	}
	r.requireError("--to: ", "push", "--directory", dir, "--to", to)

	charts := strings.TrimSuffix(to, "/dynamic-controller") + "/charts"
	out, err = r.run("push", "--directory", dir, "--to", to+":"+version, "--charts", charts)
	if err != nil {
		t.Fatal(err)
	}
	_, pushed, _ := strings.Cut(strings.TrimSpace(out), "\n")
	requirePushedChart(t, dir, charts, pushed)
	if again, err := r.run("push", "--directory", dir, "--to", to+":"+version, "--charts", charts); again != out {
		t.Errorf("the second push printed %q (error %v), the first one %q", again, err, out)
	}
	r.requireError("--charts: ", "push", "--directory", dir, "--to", to+":"+version, "--charts", "oci://"+charts)
}

// requirePushedChart makes sure that Helm finds the chart of the release in the registry.
func requirePushedChart(t *testing.T, dir, charts, pushed string) {
	t.Helper()
	client, err := helm.NewClient(helm.ClientOptPlainHTTP(), helm.ClientOptWriter(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := client.Pull(charts + "/dynamic-controller:0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	if pulled.Chart.Meta.AppVersion != version || pushed != charts+"/dynamic-controller@"+pulled.Manifest.Digest ||
		!bytes.Equal(pulled.Chart.Data, read(t, dir, "dynamic-controller-0.1.0.tgz")) {
		t.Errorf("push printed %q for the chart, and the registry has %+v", pushed, pulled.Chart.Meta)
	}
}

func TestBuild_IsReproducible(t *testing.T) {
	r := newRepository(t)
	first := r.build(targets)
	clone := repository{t, filepath.Join(t.TempDir(), "a", "longer", "path")}
	r.git("clone", "--quiet", r.dir, clone.dir)
	if err := os.Chtimes(filepath.Join(clone.dir, "install", "charts", "dynamic-controller", "values.yaml"),
		time.Unix(0, 0), time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOFLAGS", "-tags=other")
	t.Setenv("GOAMD64", "v3")
	second := clone.build(targets)
	for _, file := range names(t, first) {
		if !bytes.Equal(read(t, first, file), read(t, second, file)) {
			t.Errorf("%s differs", file)
		}
	}
	if count := len(names(t, second)); count != len(names(t, first)) {
		t.Errorf("the second release has %d files", count)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1000000000")
	third := clone.build(targets)
	if bytes.Equal(read(t, first, checksumsFile), read(t, third, checksumsFile)) {
		t.Error("SOURCE_DATE_EPOCH has no effect")
	}
}

func TestBuild_BinaryHasTheModulesOfTheSBOM(t *testing.T) {
	r := newRepository(t)
	dir := r.build("linux/amd64,darwin/arm64")
	files := untar(t, read(t, dir, "dynamic-controller_v0.1.0_darwin_arm64.tar.gz"))
	info, err := buildinfo.Read(bytes.NewReader(files["dynamic-controller"]))
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, setting := range info.Settings {
		settings[setting.Key] = setting.Value
	}
	if settings["GOOS"] != "darwin" || settings["CGO_ENABLED"] != "0" || settings["-trimpath"] != "true" ||
		settings["vcs.revision"] != "" {
		t.Errorf("the settings of the binary are %v", settings)
	}
	sbom := read(t, dir, "dynamic-controller_v0.1.0_darwin_arm64.cdx.json")
	if !bytes.Contains(sbom, []byte(info.Main.Path)) {
		t.Errorf("the SBOM does not contain %s", info.Main.Path)
	}
}

func TestBuild_RefusesWhatCannotBeReleased(t *testing.T) {
	r := newRepository(t)
	build := func(version string, args ...string) []string {
		return append([]string{"build", "--source", r.dir, "--output", filepath.Join(t.TempDir(), "release"), "--version",
			version, "--targets", targets}, args...)
	}
	r.requireError("the version is missing", build("")...)
	for _, invalid := range []string{"0.1.0", "v0.1", "v0.1.0+build", "latest"} {
		r.requireError("is not a semantic version that starts with v", build(invalid)...)
	}
	r.requireError(`CHANGELOG.md has no section "## 0.2.0"`, build("v0.2.0")...)
	r.requireError("--targets: \"linux\"", build(version, "--targets", "linux")...)
	r.requireError("--targets: linux is missing", build(version, "--targets", "darwin/arm64")...)
	r.requireError("go build for linux/pdp11", build(version, "--targets", "linux/pdp11")...)
	r.requireError("--key: ", build(version, "--key", filepath.Join(r.dir, "LICENSE"))...)

	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	r.requireError("SOURCE_DATE_EPOCH=yesterday is not", build(version)...)
	t.Setenv("SOURCE_DATE_EPOCH", "")

	r.write("new.txt", "new\n")
	r.requireError("?? new.txt", build(version)...)
	r.build(targets, "--allow-dirty")
	r.git("tag", version)
	r.commit()
	r.requireError("the tag v0.1.0 is the commit", build(version)...)

	r.write("LICENSE", "")
	if err := os.RemoveAll(filepath.Join(r.dir, ".git")); err != nil {
		t.Fatal(err)
	}
	r.requireError("must be a git clone", build(version)...)
	r.requireError("the first argument must be", "publish")
}
