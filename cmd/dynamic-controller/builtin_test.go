package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"flag"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/offline"
	"github.com/dynamic-controller/engine/test/cluster"
)

var updateBuiltin = flag.Bool("update-builtin", false, "write the schemas of built-in kinds instead of comparing them")

const builtinFile = "internal/offline/builtin.json.gz"

func TestBuiltinKinds_MatchTheAPIServer(t *testing.T) {
	t.Parallel()
	c, err := cluster.Start(t.Context(), cluster.Options{}) // has no types from other tests
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	client, err := discovery.NewDiscoveryClientForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	want := readBuiltin(t, client)
	if *updateBuiltin {
		writeBuiltin(t, want)
		return
	}
	data, err := os.ReadFile(builtinFile)
	if err != nil {
		t.Fatal(err)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(unzipped)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(decoded(t, want), decoded(t, got)); diff != "" {
		t.Errorf("the embedded schemas are out of date; run make builtin-schemas (-server +embedded):\n%.2000s", diff)
	}

	online, err := acceptance.NewOpenAPISchemas(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	embedded := acceptance.NewOpenAPISchemasFrom(offline.Builtin())
	for _, kind := range []schema.GroupVersionKind{
		{Version: "v1", Kind: "Service"}, {Group: "apps", Version: "v1", Kind: "Deployment"},
		{Group: "networking.k8s.io", Version: "v1", Kind: "Ingress"},
		{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
	} {
		_, onlineVersion, err1 := online.For(t.Context(), kind)
		_, version, err2 := embedded.For(t.Context(), kind)
		if err1 != nil || err2 != nil || version == "" || version != onlineVersion {
			t.Errorf("%s: got version %q, %v; want %q, %v", kind, version, err2, onlineVersion, err1)
		}
	}
}

func decoded(t *testing.T, data []byte) (out any) {
	t.Helper()
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// readBuiltin returns the built-in kinds of the API server and their schemas, without descriptions.
func readBuiltin(t *testing.T, client *discovery.DiscoveryClient) []byte {
	t.Helper()
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	paths, err := client.OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	out := offline.BuiltinData{Schemas: map[string]json.RawMessage{}}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		path := "apis/" + list.GroupVersion
		if gv.Group == "" {
			path = "api/" + gv.Version
		}
		var document struct {
			Components struct {
				Schemas map[string]map[string]any `json:"schemas"`
			} `json:"components"`
		}
		data, err := paths[path].Schema("application/json")
		if err == nil {
			err = json.Unmarshal(data, &document)
		}
		if err != nil {
			t.Fatal(err)
		}
		schemas := document.Components.Schemas
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") {
				continue
			}
			kind := offline.BuiltinKind{
				Group: gv.Group, Version: gv.Version, Kind: r.Kind, Resource: r.Name, Singular: r.SingularName,
				Namespaced: r.Namespaced, Verbs: r.Verbs, Schema: schemaOf(schemas, gv.WithKind(r.Kind)),
			}
			out.Kinds = append(out.Kinds, kind)
			addSchema(t, out.Schemas, schemas, kind.Schema)
		}
	}
	slices.SortFunc(out.Kinds, func(a, b offline.BuiltinKind) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Version, b.Version),
			strings.Compare(a.Resource, b.Resource))
	})
	data, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// schemaOf returns the name of the schema of a kind, or "" if the kind has none.
func schemaOf(schemas map[string]map[string]any, kind schema.GroupVersionKind) string {
	for name, s := range schemas {
		kinds, _ := s["x-kubernetes-group-version-kind"].([]any)
		for _, k := range kinds {
			k := k.(map[string]any)
			if (metav1.GroupVersionKind{Group: k["group"].(string), Version: k["version"].(string),
				Kind: k["kind"].(string)}) == metav1.GroupVersionKind(kind) {
				return name
			}
		}
	}
	return ""
}

// addSchema adds a schema and the schemas that it references.
func addSchema(t *testing.T, to map[string]json.RawMessage, schemas map[string]map[string]any, name string) {
	t.Helper()
	if _, has := to[name]; has || name == "" {
		return
	}
	var refs []string
	simplify(schemas[name], &refs)
	data, err := json.Marshal(schemas[name])
	if err != nil {
		t.Fatal(err)
	}
	to[name] = data
	for _, ref := range refs {
		addSchema(t, to, schemas, ref)
	}
}

// simplify removes the descriptions from a schema, and collects references.
func simplify(s map[string]any, refs *[]string) {
	delete(s, "description")
	if ref, has := s["$ref"].(string); has {
		*refs = append(*refs, strings.TrimPrefix(ref, "#/components/schemas/"))
	}
	visit := func(v any) {
		if s, is := v.(map[string]any); is {
			simplify(s, refs)
		}
	}
	properties, _ := s["properties"].(map[string]any)
	for _, p := range properties {
		visit(p)
	}
	visit(s["items"])
	visit(s["additionalProperties"])
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		all, _ := s[keyword].([]any)
		for _, v := range all {
			visit(v)
		}
	}
}

func writeBuiltin(t *testing.T, data []byte) {
	t.Helper()
	var zipped bytes.Buffer
	w, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = os.WriteFile(builtinFile, zipped.Bytes(), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes, %d compressed", len(data), zipped.Len())
}
