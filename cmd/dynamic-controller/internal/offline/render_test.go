package offline

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRender_PrintsChildrenInOrder(t *testing.T) {
	files := []string{"testdata/render/blueprint.yaml", "testdata/render/instance.yaml"}
	for name, o := range map[string]RenderOptions{
		"new":      {},
		"existing": {Children: "testdata/render/children.yaml"},
	} {
		var out, notes bytes.Buffer
		if err := Render(t.Context(), &out, &notes, files, o); err != nil {
			t.Errorf("%s: got error %v", name, err)
		}
		checkGolden(t, "testdata/render/"+name+".txt", out.String())
		checkGolden(t, "testdata/render/"+name+".notes.txt", notes.String())
	}
}

func TestRender_ReportsProblems(t *testing.T) {
	const blueprint = "testdata/render/blueprint.yaml"
	for name, test := range map[string]struct {
		instance, want string
		usage          bool // the command is used incorrectly
	}{
		"invalid instance": {
			instance: "{apiVersion: shop.example.com/v1, kind: Shop, metadata: {name: a}, spec: {open: maybe}}",
			want:     "-:1: shop/a: spec.open: Invalid value",
		},
		"unknown field": {
			instance: "{apiVersion: shop.example.com/v1, kind: Shop, metadata: {name: a}, spec: {opened: true}}",
			want:     "-:1: shop/a: spec.opened: unknown field",
		},
		"other type": {
			instance: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}",
			want:     "got 0", usage: true,
		},
	} {
		var out, notes bytes.Buffer
		err := Render(t.Context(), &out, &notes, []string{blueprint, "-"},
			RenderOptions{Options: Options{Stdin: strings.NewReader(test.instance)}, Namespace: "default"})
		got := notes.String()
		if test.usage && err != nil {
			got = err.Error()
		}
		if test.usage == (err == ErrProblems) || !strings.Contains(got, test.want) || out.Len() > 0 {
			t.Errorf("%s: got %v, %s, %s", name, err, out.String(), notes.String())
		}
	}
}

func TestRender_UsesTheNamespaceForInstancesWithoutOne(t *testing.T) {
	var out bytes.Buffer
	const instance = "{apiVersion: shop.example.com/v1, kind: Shop, metadata: {name: a}, spec: {}}"
	err := Render(t.Context(), &out, &bytes.Buffer{}, []string{"testdata/render/blueprint.yaml", "-"},
		RenderOptions{Options: Options{Stdin: strings.NewReader(instance)}, Namespace: "village"})
	if err != nil || !strings.Contains(out.String(), "namespace: village") {
		t.Errorf("got %v, %s", err, out.String())
	}
}

func TestRender_ReadsExistingObjects(t *testing.T) {
	const files = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: shops}
spec:
  serviceAccountName: shops
  type:
    group: shop.example.com
    version: v1
    kind: Shop
    schema: {properties: {spec: {type: object}}}
  resources:
    - id: settings
      externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {name: settings}}
    - id: members
      externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {selector: {matchLabels: {role: member}}}}
    - id: pages
      forEach: [{member: "${members}"}]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${member.metadata.name}-page"}
        data: {title: "${settings.data.title} of ${member.metadata.name}"}
---
{apiVersion: shop.example.com/v1, kind: Shop, metadata: {name: a, namespace: village}, spec: {}}
`
	existing := filepath.Join(t.TempDir(), "existing.yaml")
	if err := os.WriteFile(existing, []byte(`
{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: village}, data: {title: Roses}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: tom, namespace: village, labels: {role: member}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: ann, namespace: village, labels: {role: member}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: eve, namespace: other, labels: {role: member}}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		reason, children string
		titles, notes    []string
	}{
		{"all objects exist", existing, []string{"title: Roses of ann", "title: Roses of tom"}, nil},
		{"no objects exist", "", nil, []string{"settings: ConfigMap village/settings does not exist"}},
	} {
		var out, notes bytes.Buffer
		err := Render(t.Context(), &out, &notes, []string{"-"},
			RenderOptions{Options: Options{Stdin: strings.NewReader(files)}, Children: c.children})
		if err != nil {
			t.Errorf("%s: %v, %s", c.reason, err, notes.String())
		}
		var titles []string
		for _, line := range strings.Split(out.String(), "\n") {
			if strings.Contains(line, "title:") {
				titles = append(titles, strings.TrimSpace(line))
			}
		}
		if strings.Join(titles, "; ") != strings.Join(c.titles, "; ") {
			t.Errorf("%s: got %q, want %q", c.reason, titles, c.titles)
		}
		for _, want := range c.notes {
			if !strings.Contains(notes.String(), want) {
				t.Errorf("%s: got %q, want %q", c.reason, notes.String(), want)
			}
		}
	}
}
