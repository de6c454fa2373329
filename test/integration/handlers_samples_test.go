package integration

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/handlers/children"
)

//go:embed testdata/sample-crd.yaml
var sampleYAML []byte

// defineSamples creates the CRD of testdata/sample-crd.yaml.
func (s *setting) defineSamples() schema.GroupVersionResource {
	s.Helper()
	group := utilrand.String(8) + ".example.com"
	crd := &apiextensionsv1.CustomResourceDefinition{}
	s.noError(yaml.Unmarshal([]byte(strings.ReplaceAll(string(sampleYAML), "GROUP", group)), crd))
	s.createCRD(crd)
	gvr := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "samples"}
	for _, version := range []string{"v1", "v2"} {
		gvr.Version = version
		s.eventually("samples are served", func() error {
			_, err := s.client.Resource(gvr).List(s.Context(), metav1.ListOptions{})
			return err
		})
	}
	return gvr
}

// newSamples returns a test whose children are samples, and a function that sets the spec of the child.
func newSamples(t *testing.T) (c *converging, samples schema.GroupVersionResource, settle func(spec string)) {
	c = newConverging(t)
	samples = c.defineSamples()
	c.mapper, _ = c.mapperOf(c.parents, c.gadgets, samples)
	c.moreKinds = append(c.moreKinds, children.Kind{GroupKind: schema.GroupKind{Group: samples.Group, Kind: "Sample"}})
	c.reconciler = c.newReconciler(children.Config{Client: must(dynamic.NewForConfig(c.writes.wrap(c.config)))})
	return c, samples, func(spec string) {
		t.Helper()
		c.settle(c.parse(fmt.Sprintf("{apiVersion: %s, kind: Sample, metadata: {name: one}, spec: %s}",
			samples.GroupVersion(), spec)))
	}
}

// If all fields of a map leave the template, the API server removes the map, although the template has it, or refuses
// the null that is left.
func TestHandlers_EmptiedMaps(t *testing.T) {
	t.Parallel()
	c, samples, settle := newSamples(t)
	for name, spec := range map[string][2]string{
		"a map":                  {"{map: {a: x}}", "{map: {}}"},
		"a map without a schema": {"{free: {b: {c: x}}}", "{free: {b: {}}}"},
		"a map in an item":       {"{items: [{name: a, labels: {b: x}}]}", "{items: [{name: a, labels: {}}]}"},
		"a struct":               {"{nested: {empty: {a: x}}}", "{nested: {empty: {}}}"},
		"two structs":            {"{nested: {empty: {a: x}, b: {c: x}}}", "{nested: {empty: {}, b: {}}}"},
	} {
		t.Run(name, func(t *testing.T) {
			settle(spec[0])
			settle(spec[1])
			want := map[string]any{}
			c.noError(yaml.Unmarshal([]byte(spec[1]), &want))
			if now := c.get(samples, c.namespace, "one"); !covers(want, now.Object["spec"]) {
				t.Errorf("the spec is %v", now.Object["spec"])
			}
		})
	}
}

// A list leaves the template while others own a field of its only item.
func TestHandlers_SharedItemsLeave(t *testing.T) {
	t.Parallel()
	c, samples, settle := newSamples(t)
	settle("{text: a, pairs: [{host: c}]}")
	c.edit("kubectl-edit", samples, "one", `[{"op": "add", "path": "/spec/pairs/0/note", "value": "x"}]`)
	settle("{text: a}")
	if pairs := c.get(samples, c.namespace, "one").Object["spec"].(map[string]any)["pairs"]; pairs != nil {
		t.Errorf("the pairs are %v", pairs)
	}
}

// The template leaves out a key that has a default. Another item with the same remaining keys is not the same item.
func TestHandlers_EditedKeysWithDefaults(t *testing.T) {
	t.Parallel()
	c, samples, settle := newSamples(t)
	const spec = "{pairs: [{host: a, port: 443, note: z}, {host: c, note: x}, {host: d}]}"
	settle(spec)
	c.edit("kubectl-edit", samples, "one", `[{"op": "replace", "path": "/spec/pairs/0/host", "value": "c"},
		{"op": "replace", "path": "/spec/pairs/1/port", "value": 81}]`)
	settle(spec)
	now := c.get(samples, c.namespace, "one")
	hosts, ports := namesAt(now, "host", "spec", "pairs"), namesAt(now, "port", "spec", "pairs")
	if sortedNames(hosts) != "a,c,d" || sortedNames(ports) != "443,80,80" {
		t.Errorf("the pairs are %s and %s", hosts, ports)
	}
}

// covers reports whether an object has all values of another one. Lists must be equal.
func covers(part, object any) bool {
	fields, isMap := part.(map[string]any)
	if !isMap {
		return isEqual(part, object) || coversItems(part, object)
	}
	others, isAlsoMap := object.(map[string]any)
	for name, value := range fields {
		if other, has := others[name]; !has || !covers(value, other) {
			return false
		}
	}
	return isAlsoMap
}

func coversItems(part, object any) bool {
	items, isList := part.([]any)
	others, isAlsoList := object.([]any)
	return isList && isAlsoList && slices.EqualFunc(items, others, covers)
}

// isEqual compares values as JSON, in which numbers have no type.
func isEqual(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
