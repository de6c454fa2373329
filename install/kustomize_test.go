package install

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const kustomizeDir = "kustomize"

// components contains the values of the chart that correspond to each component of the kustomization, and to the
// kustomization itself.
var components = []struct{ name, values string }{
	{"", ""},
	{"monitoring", "{metrics: {tlsSecret: dynamic-controller-metrics-tls, serviceMonitor: {enabled: true}," +
		" prometheusRule: {enabled: true}}}"},
	{"webhook", "{webhook: {enabled: true}}"},
	{"network-policy", "{networkPolicy: {enabled: true}}"},
	{"flow-control", "{flowControl: {enabled: true}}"},
	{"flow-control-identities", "{flowControl: {enabled: true, identities: [{namespace: shop, name: webapps}]}}"},
}

const renderedHeader = "# Rendered from install/charts/dynamic-controller by make manifests. Do not edit.\n"

// alertsFile contains the alerts. Helm can only read files inside the chart, which therefore contains a copy.
const alertsFile = "../monitoring/alerts.yaml"

// TestManifests_AreRenderedFromTheChart updates the files with the flag -update.
func TestManifests_AreRenderedFromTheChart(t *testing.T) {
	if *update {
		copied := filepath.Join(chartDir, "files", filepath.Base(alertsFile))
		if err := os.WriteFile(copied, []byte(read(t, alertsFile)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	done := map[string]bool{"NOTES.txt": true}
	for _, component := range components {
		files, err := render(values(t, component.values))
		if err != nil {
			t.Fatal(err)
		}
		for file, text := range files {
			if done[file] {
				continue
			}
			done[file] = true
			file, text = filepath.Join(kustomizeDir, component.name, file), renderedHeader+text
			if *update {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if diff := cmp.Diff(text, read(t, file)); diff != "" {
				t.Errorf("%s differs from the chart: run make manifests (-chart +file)\n%s", file, diff)
			}
		}
	}
}

// kustomize returns the objects of a kustomization.
func kustomize(t *testing.T, dir string) []*unstructured.Unstructured {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := resources.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return documents(t, string(text))
}

// overlay returns the objects of the kustomization with components.
func overlay(t *testing.T, components ...string) []*unstructured.Unstructured {
	t.Helper()
	text := "resources: [BASE]\ncomponents:\n"
	for _, c := range components {
		text += "- " + path.Join("BASE", c) + "\n"
	}
	return kustomizeText(t, text, "BASE")
}

// kustomizeText returns the objects of the kustomization in text. In text, base is a placeholder for the directory of
// the platform's kustomization.
func kustomizeText(t *testing.T, text, base string) []*unstructured.Unstructured {
	t.Helper()
	dir, err1 := filepath.EvalSymlinks(t.TempDir())
	working, err2 := os.Getwd()
	relative, err3 := filepath.Rel(dir, filepath.Join(working, kustomizeDir)) // kustomize accepts only relative paths
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	text = strings.ReplaceAll(text, base, relative)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return kustomize(t, dir)
}

// byName returns objects by their kind, namespace and name.
func byName(t *testing.T, objects []*unstructured.Unstructured) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, obj := range objects {
		key := fmt.Sprint(obj.GroupVersionKind(), " ", obj.GetNamespace(), "/", obj.GetName())
		if all[key] != nil {
			t.Errorf("%s exists twice", key)
		}
		all[key] = obj.Object
	}
	return all
}

func TestKustomization_EqualsTheChart(t *testing.T) {
	type overlays struct{ components, values []string }
	var tests []overlays
	every := overlays{}
	for _, c := range components {
		one := overlays{nil, []string{c.values}}
		if c.name != "" {
			one.components = []string{c.name}
			if c.name == "flow-control-identities" { // the identities require the platform's own priority level
				one.components = []string{"flow-control", c.name}
			}
			every.components = append(every.components, c.name)
		}
		every.values = append(every.values, c.values)
		tests = append(tests, one)
	}
	for _, test := range append(tests, every) {
		t.Run(strings.Join(test.components, ","), func(t *testing.T) {
			merged := map[string]any{}
			for _, text := range test.values {
				mergeInto(merged, values(t, text))
			}
			got := byName(t, overlay(t, test.components...))
			delete(got, "/v1, Kind=Namespace /"+namespace) // Helm creates it with --create-namespace
			if diff := cmp.Diff(byName(t, rendered(t, merged)), got); diff != "" {
				t.Errorf("(-chart +kustomization)\n%s", diff)
			}
		})
	}
}

func mergeInto(to, from map[string]any) {
	for key, value := range from {
		inner, isObject := value.(map[string]any)
		if existing, ok := to[key].(map[string]any); ok && isObject {
			mergeInto(existing, inner)
			continue
		}
		to[key] = value
	}
}
