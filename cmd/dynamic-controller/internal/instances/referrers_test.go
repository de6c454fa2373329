package instances

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

type watchedObject = dynamiccontroller.Object

// metadataObject is an object of which a watch caches only the metadata.
type metadataObject struct {
	watchedObject
	meta metav1.ObjectMeta
}

func (o metadataObject) GetNamespace() string              { return o.meta.Namespace }
func (o metadataObject) GetName() string                   { return o.meta.Name }
func (o metadataObject) GetLabels() map[string]string      { return o.meta.Labels }
func (o metadataObject) GetAnnotations() map[string]string { return o.meta.Annotations }

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

func TestReferrers(t *testing.T) {
	named := target{gvr: configMaps, namespace: "shop", name: "a"}
	selecting := func(selector string) (target, labels.Selector) {
		parsed, err := labels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		return target{gvr: configMaps, namespace: "shop", selector: parsed.String()}, parsed
	}
	red, redSelector := selecting("color=red")
	every, everySelector := selecting("")
	r := newReferrers()
	r.add("shop/named", named, nil)
	r.add("shop/again", named, nil)
	r.add("shop/red", red, redSelector)
	r.add("shop/red-again", red, redSelector)
	r.add("far/every", every, everySelector)
	r.add("shop/both", named, nil)
	r.add("shop/both", red, redSelector)

	object := func(namespace, name, color string, annotations ...string) metadataObject {
		meta := metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"color": color}}
		for _, key := range annotations {
			meta.Annotations = map[string]string{key: "x"}
		}
		return metadataObject{meta: meta}
	}
	expect := func(name string, gvr schema.GroupVersionResource, o metadataObject, want ...string) {
		t.Helper()
		if got := r.of(gvr, o); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	expect("by name", configMaps, object("shop", "a", "blue"), "far/every", "shop/again", "shop/both", "shop/named")
	expect("by label", configMaps, object("shop", "b", "red"), "far/every", "shop/both", "shop/red", "shop/red-again")
	expect("by name and label", configMaps, object("shop", "a", "red"), "far/every", "shop/again", "shop/both",
		"shop/named", "shop/red", "shop/red-again")
	expect("unknown labels", configMaps, object("shop", "b", "", omittedAnnotation), "far/every", "shop/both", "shop/red",
		"shop/red-again")
	expect("another namespace", configMaps, object("far", "a", "red"))
	expect("another type", schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, object("shop", "a", "red"))

	r.keep("shop/both", sets.New(named))
	r.keep("shop/again", nil)
	expect("after a change", configMaps, object("shop", "a", "red"), "far/every", "shop/both", "shop/named", "shop/red",
		"shop/red-again")
	for _, instance := range []string{"shop/named", "shop/red", "shop/red-again", "far/every", "shop/both", "unknown"} {
		r.keep(instance, nil)
	}
	if n := len(r.targets) + len(r.instances) + len(r.selectors); n > 0 {
		t.Errorf("%d entries remain: %+v", n, r)
	}
}

// For other objects, the cache keeps only the metadata that the index needs.
func TestTransform_KeepsOnlyTheLabelsOfReferencedObjects(t *testing.T) {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "a", UID: "1", ResourceVersion: "2", Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"last-applied": strings.Repeat("x", 1000)}, Finalizers: []string{"a/b"},
	}}
	out, err := Transform(m)
	if err != nil {
		t.Fatal(err)
	}
	kept := out.(*metav1.PartialObjectMetadata)
	if kept.Name != "a" || kept.Namespace != "shop" || kept.UID != "1" || kept.ResourceVersion != "2" ||
		kept.Labels["a"] != "b" || len(kept.Annotations)+len(kept.Finalizers) > 0 {
		t.Errorf("got %+v", kept)
	}
	m.Labels["large"] = strings.Repeat("x", maxMarkBytes)
	out, _ = Transform(m)
	if kept = out.(*metav1.PartialObjectMetadata); len(kept.Labels) > 0 || kept.Annotations[omittedAnnotation] == "" {
		t.Errorf("got %+v", kept)
	}
}
