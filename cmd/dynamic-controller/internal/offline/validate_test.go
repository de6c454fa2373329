package offline

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// checkGolden compares a text with a golden file.
func checkGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func TestValidate_ReportsProblemsWithFileAndLine(t *testing.T) {
	for _, pattern := range []string{"testdata/refused/*.yaml", "testdata/invalid/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, file := range files {
			var out bytes.Buffer
			if err := Validate(t.Context(), &out, io.Discard, []string{file}, Options{}); err != ErrProblems {
				t.Errorf("%s: got error %v", file, err)
			}
			checkGolden(t, strings.TrimSuffix(file, ".yaml")+".txt", out.String())
		}
	}
}

func TestValidate_AcceptsValidFiles(t *testing.T) {
	for _, paths := range [][]string{{"testdata/accepted/nested.yaml"}, {"testdata/accepted"}, {"../../../../examples"}} {
		var out, errOut bytes.Buffer
		err := Validate(t.Context(), &out, &errOut, paths, Options{})
		if err != nil || out.Len() > 0 || !strings.HasSuffix(errOut.String(), " are valid\n") {
			t.Errorf("%s: got %v, %s, %s", paths, err, out.String(), errOut.String())
		}
	}
}

func TestValidate_CountsValidObjects(t *testing.T) {
	for want, paths := range map[string][]string{
		"1 Blueprint and 0 instances are valid\n": {"testdata/render/blueprint.yaml"},
		"1 Blueprint and 1 instance are valid\n":  {"testdata/render/blueprint.yaml", "testdata/render/instance.yaml"},
		"":                                        {"testdata/refused/fields.yaml"},
	} {
		var errOut bytes.Buffer
		err := Validate(t.Context(), io.Discard, &errOut, paths, Options{})
		if (err == nil) != (want != "") || errOut.String() != want {
			t.Errorf("%s: got %v, %q, want %q", paths, err, errOut.String(), want)
		}
	}
}

func TestValidate_ReadsStdin(t *testing.T) {
	file, err := os.Open("testdata/refused/types.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var out bytes.Buffer
	if err := Validate(t.Context(), &out, io.Discard, []string{"-"}, Options{Stdin: file}); err != ErrProblems ||
		!strings.HasPrefix(out.String(), "-:5: blueprint/orders.shop.example.com: spec.type.crd: ") {
		t.Errorf("got %v, %s", err, out.String())
	}
}

func TestValidate_ReplacesControlCharacters(t *testing.T) {
	text := "{apiVersion: platform.example.com/v1alpha1, kind: Blueprint, metadata: {name: \"a\\e[31mb\"}}"
	var out bytes.Buffer
	err := Validate(t.Context(), &out, io.Discard, []string{"-"}, Options{Stdin: strings.NewReader(text)})
	if err != ErrProblems || !strings.Contains(out.String(), "blueprint/a?[31mb: ") {
		t.Errorf("got %v, %q", err, out.String())
	}
}

func TestValidate_ReturnsErrorsForUnreadableInput(t *testing.T) {
	broken := errors.New("broken pipe")
	for name, paths := range map[string][]string{
		"missing file":                {"testdata/missing.yaml"},
		"directory without manifests": {t.TempDir()},
		"failing stdin":               {"-"},
	} {
		err := Validate(t.Context(), &bytes.Buffer{}, io.Discard, paths, Options{Stdin: iotest.ErrReader(broken)})
		if err == nil || err == ErrProblems {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}

const unknownKind = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: shops.shop.example.com}
spec:
  type: {group: shop.example.com, version: v1, kind: Shop, schema: {properties: {spec: {type: object}}}}
  resources:
    - id: lamp
      template: {apiVersion: light.example.com/v1, kind: Lamp, metadata: {name: a}}
`

func TestValidate_UnknownKinds(t *testing.T) {
	const want = "-:9: blueprint/shops.shop.example.com: spec.resources[0].template: unknown kind Lamp in " +
		"light.example.com/v1; pass its CustomResourceDefinition as a file, or use --kubeconfig\n"
	var out bytes.Buffer
	err := Validate(t.Context(), &out, io.Discard, []string{"-"}, Options{Stdin: strings.NewReader(unknownKind)})
	if err != ErrProblems || out.String() != want {
		t.Errorf("got %v, %s", err, out.String())
	}
	out.Reset()
	err = Validate(t.Context(), &out, io.Discard, []string{"-"},
		Options{Stdin: strings.NewReader(unknownKind), AllowUnknownKinds: true})
	if err != nil || out.Len() > 0 {
		t.Errorf("allowed: got %v, %s", err, out.String())
	}
}

func TestValidate_StopsWhenTheContextIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("stopped")
	cancel(cause)
	err := Validate(ctx, io.Discard, io.Discard, []string{"testdata/accepted"}, Options{})
	if !errors.Is(err, cause) {
		t.Errorf("got error %v", err)
	}
}

func TestValidate_ReadsAFileOnce(t *testing.T) {
	var out bytes.Buffer
	const file = "testdata/accepted/nested.yaml"
	paths := []string{file, "testdata/accepted", "./" + file}
	if err := Validate(t.Context(), &out, io.Discard, paths, Options{}); err != nil {
		t.Errorf("got %v, %s", err, out.String())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const want = "metadata.name: already used by a Blueprint in " + file
	err = Validate(t.Context(), &out, io.Discard, []string{file, "-"}, Options{Stdin: bytes.NewReader(data)})
	if err != ErrProblems || !strings.Contains(out.String(), want) {
		t.Errorf("a copy: got %v, %s", err, out.String())
	}
}

func TestValidate_LimitsTheSizeOfABlueprint(t *testing.T) {
	text := strings.Replace(unknownKind, "kind: Lamp", "kind: Lamp, data: "+strings.Repeat("x", 600<<10), 1)
	var out bytes.Buffer
	err := Validate(t.Context(), &out, io.Discard, []string{"-"}, Options{Stdin: strings.NewReader(text)})
	const want = "-:5: blueprint/shops.shop.example.com: spec: has more than"
	if err != ErrProblems || !strings.HasPrefix(out.String(), want) {
		t.Errorf("got %v, %s", err, out.String())
	}
}

// A resource that is excluded through another one is not a problem, but easily overlooked.
func TestValidate_NotesResourcesThatAreExcludedThroughOthers(t *testing.T) {
	const text = shopBlueprint + `    - id: database
      includeWhen: ["self.metadata.name == 'a'"]
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: db}, data: {host: db}}
    - id: app
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {host: "${READ}"}}
`
	const note = "note: -:11: blueprint/shops.shop.example.com: spec.resources[1].template.data.host: app is excluded " +
		"whenever database is, because it reads database; to keep it, read database by ?, as in database.?status\n"
	for read, want := range map[string]string{
		"database.data.host":                      note,
		"database.?data.?host.orValue('no host')": "",
	} {
		var out, errOut bytes.Buffer
		file := strings.Replace(strings.Replace(text, "READ", read, 1), "resources: []", "resources:", 1)
		err := Validate(t.Context(), &out, &errOut, []string{"-"}, Options{Stdin: strings.NewReader(file)})
		if want += "1 Blueprint and 0 instances are valid\n"; err != nil || errOut.String() != want {
			t.Errorf("%s: got %v, %s%s, want %s", read, err, out.String(), errOut.String(), want)
		}
	}
}
