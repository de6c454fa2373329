package platform

import (
	"bytes"
	"debug/buildinfo"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

const version = "v1.2.3"

// The SBOM of the platform lists the modules that "go version -m" prints. The platform is built without the flags of
// the image, so that the build cache can be used.
func TestSBOM_ListsTheModulesOfTheBinary(t *testing.T) {
	file := filepath.Join(t.TempDir(), "binary")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", file, ".")
	build.Dir = filepath.Join("..", "..", "..", program)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sbom, err := NewSBOM(file, version)
	if err != nil {
		t.Fatal(err)
	}
	bom := new(cdx.BOM)
	if err := cdx.NewBOMDecoder(bytes.NewReader(sbom), cdx.BOMFileFormatJSON).Decode(bom); err != nil {
		t.Fatal(err)
	}
	requireSchema(t, sbom)
	listed := map[string]string{}
	for _, c := range *bom.Components {
		listed[c.Name] = c.Version
	}
	const program = "github.com/dynamic-controller/engine/cmd/dynamic-controller"
	if root := bom.Metadata.Component; root.Name != program || root.Version != version {
		t.Errorf("the SBOM describes %s %s", root.Name, root.Version)
	}
	if got := "go" + listed["std"]; got != info.GoVersion {
		t.Errorf("the SBOM lists the standard library of %s, want %s", got, info.GoVersion)
	}
	for _, module := range info.Deps {
		want := module.Version
		if module.Path == "github.com/dynamic-controller/engine" { // built from the same commit
			want = version
		}
		if listed[module.Path] != want {
			t.Errorf("the SBOM lists %s %q, want %s", module.Path, listed[module.Path], want)
		}
	}
	if len(info.Deps) < 50 || len(listed) != len(info.Deps)+1 {
		t.Errorf("the SBOM lists %d components, the binary has %d modules", len(listed), len(info.Deps))
	}
}

func TestLibrary_HasAValidPackageURL(t *testing.T) {
	got := library("github.com/KimMachineGun/automemlimit", "v1.0.1+incompatible").PackageURL
	if want := "pkg:golang/github.com/kimmachinegun/automemlimit@v1.0.1%2Bincompatible"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// requireSchema validates an SBOM with CycloneDX's schema, which is part of the module of the library.
func requireSchema(t *testing.T, sbom []byte) {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	schemas := filepath.Join(strings.TrimSpace(string(dir)), "schema")
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(schemaLoader(schemas))
	schema, err := compiler.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(sbom))
	if err == nil {
		err = schema.Validate(document)
	}
	if err != nil {
		t.Error(err)
	}
}

// schemaLoader reads schemas from a directory.
type schemaLoader string

func (dir schemaLoader) Load(url string) (any, error) {
	name := path.Base(url)
	if name == "jsf-0.82.schema.json" {
		name = "jsf-0.82.schemax.json" // the name in the module
	}
	file, err := os.Open(filepath.Join(string(dir), name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return jsonschema.UnmarshalJSON(file)
}
