package onserver

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/acceptance"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// oracle checks objects with both Compile and the API server.
type oracle struct {
	client  dynamic.Interface
	mapper  meta.RESTMapper
	schemas *acceptance.OpenAPISchemas
	crates  common.Schema
}

func newOracle(t *testing.T) *oracle {
	t.Helper()
	cfg := shared.Cluster(t).Config()
	cfg.QPS = -1
	cfg.WarningHandler = rest.NoWarnings{} // invalid objects cause many warnings
	client, err1 := dynamic.NewForConfig(cfg)
	asking, err2 := discovery.NewDiscoveryClientForConfig(cfg)
	schemas, err3 := acceptance.NewOpenAPISchemas(cfg)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	crate := object(t, file(t, "crate.yaml"))
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(crate.Object, &crd); err != nil {
		t.Fatal(err)
	}
	define(t, client, &crd)
	apply(t, client, schema.GroupVersionResource{Group: "fields.example.com", Version: "v1", Resource: "crates"},
		"default",
		object(t, "{apiVersion: fields.example.com/v1, kind: Crate, metadata: {name: first}}"))
	crates, err := blueprint.SchemaOf(&crd, "v1")
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(asking)
	if err != nil {
		t.Fatal(err)
	}
	return &oracle{client, restmapper.NewDiscoveryRESTMapper(groups), schemas, crates}
}

// compile returns the problems that Compile reports for a Blueprint with this template.
func (o *oracle) compile(t *testing.T, template *unstructured.Unstructured) []string {
	t.Helper()
	b, err := blueprint.FromUnstructured(object(t, text))
	if err != nil {
		t.Fatal(err)
	}
	b.Spec.Type.Status = nil // only the template is tested
	b.Spec.Resources = []blueprint.Resource{{ID: "a", Template: template.Object}}
	_, err = blueprint.Compile(b, blueprint.Options{SchemaFor: func(gvk schema.GroupVersionKind) common.Schema {
		if gvk.Group == "fields.example.com" {
			return o.crates
		}
		s, _, err := o.schemas.For(t.Context(), gvk)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}})
	var problems blueprint.Problems
	if err != nil && !errors.As(err, &problems) {
		t.Fatal(err)
	}
	var all []string
	for _, p := range problems {
		all = append(all, p.String())
	}
	return all
}

// apply returns the error from a dry-run server-side apply.
func (o *oracle) apply(t *testing.T, template *unstructured.Unstructured) error {
	t.Helper()
	mapping, err := o.mapper.RESTMapping(template.GroupVersionKind().GroupKind(), template.GroupVersionKind().Version)
	if err != nil {
		t.Fatal(err)
	}
	namespace := ""
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		namespace = "default"
	}
	_, err = o.client.Resource(mapping.Resource).Namespace(namespace).Apply(t.Context(), template.GetName(), template,
		metav1.ApplyOptions{FieldManager: "test", Force: true, DryRun: []string{metav1.DryRunAll}})
	return err
}

// isOfSchema reports whether the API server rejected an object because of its schema alone, before admission and
// validation.
func isOfSchema(err error) bool {
	return strings.Contains(err.Error(), "failed to create typed patch object")
}

var every = flag.Int("every", 4, "compare every Nth variant of a manifest, from a random one on")

// Compile and the API server must accept each manifest. They must also agree on each variant of a manifest, as far as
// the schema determines the result.
func TestCompile_AgreesWithServer(t *testing.T) {
	o := newOracle(t)
	refused, taken := 0, 0
	for _, manifest := range strings.Split(file(t, "manifests.yaml"), "\n---\n") {
		whole := object(t, manifest)
		name := whole.GetKind() + " " + whole.GetName()
		if err := o.apply(t, whole); err != nil {
			t.Errorf("%s is rejected by the server: %v", name, err)
			continue
		}
		if problems := o.compile(t, whole); problems != nil {
			t.Errorf("%s is rejected by Compile: %q", name, problems)
			continue
		}
		all := variants(whole.Object, "")
		for i := rand.IntN(*every); i < len(all); i += *every {
			v := all[i]
			other := &unstructured.Unstructured{Object: v.value.(map[string]any)}
			err := o.apply(t, other)
			if apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) {
				t.Fatal(err)
			}
			problems := o.compile(t, other)
			switch {
			case problems != nil && err == nil:
				t.Errorf("%s with %s: accepted by the server, but Compile reports %q", name, v.name, problems)
			case problems == nil && err != nil && isOfSchema(err):
				t.Errorf("%s with %s: accepted by Compile, but the server reports %v", name, v.name, err)
			case problems != nil:
				refused++
			default:
				taken++
			}
		}
	}
	if least := 1000 / *every; refused < least || taken < least {
		t.Errorf("too few variants: %d rejected, %d accepted", refused, taken)
	}
	t.Logf("variants: %d rejected, %d accepted", refused, taken)
}

// variant is a copy of a value with one change.
type variant struct {
	name  string
	value any
}

// variants returns copies of a template, each with a value of another type, a null or an unknown field.
func variants(v any, path string) (all []variant) {
	switch path {
	case ".apiVersion", ".kind", ".metadata.name", ".metadata.labels", ".metadata.annotations":
		return nil // checked by other tests
	case ".spec.raw.apiVersion", ".spec.raw.kind", ".spec.raw.metadata":
		return nil // not checked: an embedded object can have any kind
	}
	if path != "" && path != ".metadata" {
		for _, other := range []any{nil, "text", "", 1.5, true, []any{"text"}, map[string]any{"bogus": "text"}} {
			all = append(all, variant{fmt.Sprintf("%#v at %s", other, path), other})
		}
	}
	switch v := v.(type) {
	case map[string]any:
		with := func(key string, value any) map[string]any {
			out := maps.Clone(v)
			out[key] = value
			return out
		}
		all = append(all, variant{"a field at " + path + ".bogus", with("bogus", "text")})
		for _, key := range slices.Sorted(maps.Keys(v)) {
			for _, part := range variants(v[key], path+"."+key) {
				all = append(all, variant{part.name, with(key, part.value)})
			}
		}
	case []any:
		for i, item := range v {
			for _, part := range variants(item, fmt.Sprintf("%s[%d]", path, i)) {
				out := slices.Clone(v)
				out[i] = part.value
				all = append(all, variant{part.name, out})
			}
		}
	}
	return all
}

func file(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
