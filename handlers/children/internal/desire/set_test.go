package desire

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// A child that breaks a rule makes the whole set invalid. Each row fails without its rule.
func TestNew_RefusesInvalidChildren(t *testing.T) {
	widget := func(version, name string) Spec {
		return Spec{Object: newObject("example.com/"+version, "Widget", "default", name)}
	}
	far := configMap(inNamespace("far"))
	for rule, test := range map[string]struct {
		change  func(*Input)
		desired Desired
		want    string // the error
		is      error  // the error wraps it
	}{
		"it has no name": {
			desired: stages([]Spec{configMap(named(""))}),
			want:    "ConfigMap : must have a name; use handlers.Expectations for children with a generateName",
		},
		"its kind is not in Config.Kinds": {
			change:  func(in *Input) { delete(in.Kinds, configMapKind) },
			desired: stages([]Spec{configMap()}),
			want:    "ConfigMap a: the kind must be in children.Config.Kinds", is: ErrKindNotListed,
		},
		"a kind of later calls is not in Config.Kinds": {
			desired: Desired{Kinds: []schema.GroupVersionKind{{Group: "example.com", Version: "v1", Kind: "Gadget"}}},
			want:    "desired kind Gadget.example.com: the kind must be in children.Config.Kinds", is: ErrKindNotListed,
		},
		"it is the parent itself": {
			desired: stages([]Spec{widget("v1", "p")}), want: "Widget.example.com p: must not be the parent itself",
		},
		"it is desired twice": {
			desired: stages([]Spec{configMap(), configMap(inNamespace("default"), valued("y"))}),
			want:    "ConfigMap a: must not be desired twice",
		},
		"it is desired twice, in several stages": {
			desired: stages([]Spec{configMap()}, []Spec{configMap(retained)}), want: "ConfigMap a: must not be desired twice",
		},
		"its kind is desired in two versions": {
			desired: stages([]Spec{widget("v1", "a"), widget("v2", "b")}),
			want:    "Widget.example.com b: its kind must not be desired in two versions, v1 and v2",
		},
		"its kind is desired in another version by later calls": {
			desired: Desired{
				Stages: [][]Spec{{widget("v2", "a")}},
				Kinds:  []schema.GroupVersionKind{widgetKind.WithVersion("v1")},
			},
			want: "Widget.example.com a: its kind must not be desired in two versions, v1 and v2",
		},
		"it is outside the parent's namespace": {
			desired: stages([]Spec{far}),
			want: "ConfigMap a: is outside its parent's namespace default; " +
				"add its kind to children.Config.Kinds with CrossNamespace set",
		},
		"it is retained, and outside the parent's namespace": {
			desired: stages([]Spec{configMap(inNamespace("far"), retained)}),
			want: "ConfigMap a: is outside its parent's namespace default; " +
				"add its kind to children.Config.Kinds with CrossNamespace set",
		},
		"it is cluster-scoped, and the parent is not": {
			desired: stages([]Spec{{Object: newObject("v1", "Namespace", "", "a")}}),
			want: "Namespace a: is outside its parent's namespace default; " +
				"add its kind to children.Config.Kinds with CrossNamespace set",
		},
		"it is cluster-scoped, and has a namespace": {
			change: crossNamespace(namespaceKind), desired: stages([]Spec{{Object: newObject("v1", "Namespace", "x", "a")}}),
			want: "Namespace a: must not have the namespace x, because its kind is cluster-scoped",
		},
		"it has no namespace, and neither has the parent": {
			change: clusterScopedParent, desired: stages([]Spec{configMap()}),
			want: "ConfigMap a: must have a namespace, because its parent has none",
		},
		"its namespace is not in Config.Namespaces": {
			change: func(in *Input) {
				crossNamespace(configMapKind)(in)
				in.Namespaces = []string{"default", "near"}
			},
			desired: stages([]Spec{far}),
			want:    "ConfigMap a: namespace far: the controller is limited to other namespaces", is: ErrNamespaceNotListed,
		},
		"the parent's namespace is not in Config.Namespaces": {
			change: func(in *Input) { in.Namespaces = []string{"near"} }, desired: stages([]Spec{configMap()}),
			want: "ConfigMap a: namespace default: the controller is limited to other namespaces", is: ErrNamespaceNotListed,
		},
		"it is retained, and has an owner reference to the parent": {
			desired: stages([]Spec{configMap(retained, func(s *Spec) {
				s.Object.SetOwnerReferences([]metav1.OwnerReference{{
					APIVersion: "example.com/v1", Kind: "Widget", Name: "p", UID: "parent",
				}})
			})}),
			want: "ConfigMap a: must not have an owner reference to its parent, because it is retained",
		},
		"it has the annotation with which users confirm a restore": {
			desired: stages([]Spec{configMap(annotated("platform.example.com/restored", "x"))}),
			want:    "ConfigMap a: must not have the annotation platform.example.com/restored",
		},
		"it has the annotation of retained children": {
			desired: stages([]Spec{configMap(annotated("platform.example.com/retained-by", "x"))}),
			want:    "ConfigMap a: must not have the annotation platform.example.com/retained-by",
		},
		"it has the annotation of adopted children": {
			desired: stages([]Spec{configMap(annotated("platform.example.com/adopted", "x"))}),
			want:    "ConfigMap a: must not have the annotation platform.example.com/adopted",
		},
		"it has the annotation of recreated children": {
			desired: stages([]Spec{configMap(annotated("platform.example.com/recreated", "x"))}),
			want:    "ConfigMap a: must not have the annotation platform.example.com/recreated",
		},
		"a label is not a string": {
			desired: stages([]Spec{configMap(func(s *Spec) {
				s.Object.Object["metadata"].(map[string]any)["labels"] = map[string]any{"a": int64(1)}
			})}),
			want: "ConfigMap a: metadata.labels: must be a map of strings",
		},
		"an annotation is not a string": {
			desired: stages([]Spec{configMap(func(s *Spec) {
				s.Object.Object["metadata"].(map[string]any)["annotations"] = map[string]any{"a": true}
			})}),
			want: "ConfigMap a: metadata.annotations: must be a map of strings",
		},
		"its stringData is not a map of strings": {
			desired: stages([]Spec{{Object: newObject("v1", "Secret", "", "s")}, configMap(func(s *Spec) {
				s.Object.SetKind("Secret")
				s.Object.Object["stringData"] = map[string]any{"pin": int64(1234)}
			})}),
			want: "Secret a: stringData: must be a map of strings",
		},
		"a lookup fails": {
			change:  func(in *Input) { in.Mapper.(*testMapper).failures["ConfigMap"] = errLookup },
			desired: stages([]Spec{configMap()}), want: "ConfigMap a: find the resource: the lookup failed", is: errLookup,
		},
		"a lookup for later calls fails": {
			change:  func(in *Input) { in.Mapper.(*testMapper).failures["ConfigMap"] = errLookup },
			desired: Desired{Kinds: []schema.GroupVersionKind{configMapKind.WithVersion("v1")}},
			want:    "find the resource for ConfigMap: the lookup failed", is: errLookup,
		},
		"the verbs cannot be found": {
			change:  func(in *Input) { in.Mapper.(*testMapper).verbs["configmaps"] = nil },
			desired: stages([]Spec{configMap()}), want: "ConfigMap a: find the verbs: the lookup failed", is: errLookup,
		},
		"the parent's namespace cannot be read": {
			change: func(in *Input) {
				crossNamespace(configMapKind)(in)
				in.Namespace = func() (types.UID, error) { return "", errLookup }
			},
			desired: stages([]Spec{far}), want: "ConfigMap a: the lookup failed", is: errLookup,
		},
		"a kept field does not parse": {
			desired: stages([]Spec{configMap(keeping("status.x"))}),
			want:    `ConfigMap a: KeepExisting: path "status.x": status cannot be kept`,
		},
		"several children are invalid": {
			desired: stages([]Spec{configMap(named("")), configMap(), configMap()}),
			want: "ConfigMap : must have a name; use handlers.Expectations for children with a generateName\n" +
				"ConfigMap a: must not be desired twice",
		},
	} {
		t.Run(rule, func(t *testing.T) {
			in := newInput(t)
			if test.change != nil {
				test.change(&in)
			}
			_, err := New(in, test.desired)
			failUnless(t, err, test.want, test.is)
		})
	}
}

// failUnless fails the test unless an error has a text, and wraps another one if that is not nil.
func failUnless(t *testing.T, err error, text string, wrapped error) {
	t.Helper()
	if err == nil || err.Error() != text {
		t.Fatalf("got %v, want %s", err, text)
	}
	if wrapped != nil && !errors.Is(err, wrapped) {
		t.Errorf("%v does not wrap %v", err, wrapped)
	}
}

// These children look as if they broke a rule.
func TestNew_AcceptsValidChildren(t *testing.T) {
	for situation, test := range map[string]struct {
		change func(*Input)
		specs  []Spec
	}{
		"the same name, and another kind": {
			specs: []Spec{configMap(), {Object: newObject("v1", "Secret", "", "a")}},
		},
		"the same name, in another namespace": {
			change: crossNamespace(configMapKind), specs: []Spec{configMap(), configMap(inNamespace("far"))},
		},
		"the name of the parent, in another namespace": {
			change: crossNamespace(widgetKind), specs: []Spec{{Object: newObject("example.com/v1", "Widget", "far", "p")}},
		},
		"the name of the parent, and another kind": {specs: []Spec{configMap(named("p"))}},
		"any namespace, of a cluster-scoped parent": {
			change: clusterScopedParent, specs: []Spec{configMap(inNamespace("far"))},
		},
		"a cluster-scoped child of a cluster-scoped parent": {
			change: clusterScopedParent, specs: []Spec{{Object: newObject("v1", "Namespace", "", "a")}},
		},
		"a retained child in a namespace that is not listed": {
			change: func(in *Input) { in.Namespaces = []string{"near"} }, specs: []Spec{configMap(retained)},
		},
		"a cluster-scoped child, with Config.Namespaces": {
			change: func(in *Input) {
				crossNamespace(namespaceKind)(in)
				in.Namespaces = []string{"near"}
			},
			specs: []Spec{{Object: newObject("v1", "Namespace", "", "a")}},
		},
		"a retained child with another owner": {
			specs: []Spec{configMap(retained, func(s *Spec) {
				s.Object.SetOwnerReferences([]metav1.OwnerReference{{UID: "another"}})
			})},
		},
		"an empty reserved annotation": {specs: []Spec{configMap(annotated("platform.example.com/adopted", ""))}},
	} {
		t.Run(situation, func(t *testing.T) {
			in := newInput(t)
			if test.change != nil {
				test.change(&in)
			}
			set, err := New(in, stages(test.specs))
			if err != nil {
				t.Fatal(err)
			}
			for i, child := range set.Stages[0] {
				if child.Err != nil || child.Ready == nil {
					t.Errorf("child %d: got %v", i, child.Err)
				}
			}
		})
	}
}

// A child whose kind the API server does not know, or does not fully support, fails on its own: an earlier stage can
// define the kind.
func TestNew_ChildrenThatCannotBeAppliedDoNotAffectOthers(t *testing.T) {
	unknown := Spec{Object: newObject("v1", "Unknown", "far", "u")}
	for situation, test := range map[string]struct {
		change func(*Input)
		spec   Spec
		want   string
		name   string
		ready  bool
		is     error
	}{
		"the kind is unknown": {
			spec: unknown, name: "far/u", want: `find the resource: no matches for kind "Unknown" in version "v1"`,
		},
		"the discovery of the group fails": {
			change: func(in *Input) { in.Mapper.(*testMapper).failures["Secret"] = errUndiscovered },
			spec:   Spec{Object: newObject("v1", "Secret", "", "s")}, name: "s",
			want: "find the resource: the discovery of the group fails", is: errUndiscovered,
		},
		"the kind lacks verbs": {
			change: func(in *Input) { in.Mapper.(*testMapper).verbs["secrets"] = []string{"create"} },
			spec:   Spec{Object: newObject("v1", "Secret", "", "s")}, name: "s",
			want: "the API server does not support all requests for the kind: it lacks delete, get, list, patch",
			is:   ErrKindNotSupported,
		},
		"the namespace is invalid": {
			change: crossNamespace(configMapKind),
			spec:   configMap(inNamespace("far@1")), name: "far@1/a", ready: true,
			want: `invalid namespace: "far@1": a lowercase RFC 1123 label must consist of lower case alphanumeric ` +
				"characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', " +
				"regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
			is: ErrInvalidNamespace,
		},
	} {
		t.Run(situation, func(t *testing.T) {
			in := newInput(t)
			if test.change != nil {
				test.change(&in)
			}
			set, err := New(in, stages(nil, []Spec{test.spec, configMap(named("other"))}))
			if err != nil {
				t.Fatal(err)
			}
			child, other := set.Stages[1][0], set.Stages[1][1]
			failUnless(t, child.Err, test.want, test.is)
			if kind := test.spec.Object.GroupVersionKind().GroupKind(); child.Key != (Key{Kind: kind, Name: test.name}) ||
				child.Stage != 1 || child.Group != 2 {
				t.Errorf("got %v in stage %d and group %d, want %s", child.Key, child.Stage, child.Group, test.name)
			}
			if (child.Ready != nil) != test.ready || (child.Mapping != nil) != test.ready {
				t.Errorf("got %v with the mapping %v", child.Ready, child.Mapping)
			}
			if set.NeedsWitness || len(set.Namespaces) > 0 {
				t.Errorf("the parent needs a witness: %t, and the namespaces %v", set.NeedsWitness, set.Namespaces)
			}
			if other.Err != nil || other.Ready == nil {
				t.Errorf("the other child got %v", other.Err)
			}
		})
	}
}

// What the parent's metadata must contain follows from the children.
func TestNew_WhatTheParentNeeds(t *testing.T) {
	far := configMap(inNamespace("far"))
	for situation, test := range map[string]struct {
		change           func(*Input)
		desired          Desired
		cleanUp, witness bool
		kinds            string // and the namespaces for each of them
	}{
		"nothing is desired":   {},
		"a child in one stage": {desired: stages([]Spec{configMap()}), kinds: "ConfigMap[]"},
		"several stages":       {desired: stages([]Spec{configMap()}, nil), cleanUp: true, kinds: "ConfigMap[]"},
		"only kinds": {
			desired: Desired{Kinds: []schema.GroupVersionKind{widgetKind.WithVersion("v2")}}, kinds: "Widget.example.com[]",
		},
		"only an unknown kind": {desired: Desired{Kinds: []schema.GroupVersionKind{{Version: "v1", Kind: "Unknown"}}}},
		"children in other namespaces": {
			change: crossNamespace(configMapKind),
			desired: stages([]Spec{
				far, configMap(inNamespace("near")), configMap(), {Object: newObject("v1", "Secret", "", "s")},
			}),
			cleanUp: true, witness: true, kinds: "ConfigMap[far near] Secret[]",
		},
		"a cluster-scoped child": {
			change: crossNamespace(namespaceKind), desired: stages([]Spec{{Object: newObject("v1", "Namespace", "", "a")}}),
			cleanUp: true, witness: true, kinds: "Namespace[]",
		},
		"a retained child": {desired: stages([]Spec{configMap(retained)}), kinds: "ConfigMap[]"},
		"a retained child in another namespace": {
			change: crossNamespace(configMapKind), desired: stages([]Spec{configMap(retained, inNamespace("far"))}),
			kinds: "ConfigMap[]",
		},
		"a child of a cluster-scoped parent": {
			change: clusterScopedParent, desired: stages([]Spec{far}), kinds: "ConfigMap[far]",
		},
	} {
		t.Run(situation, func(t *testing.T) {
			in := newInput(t)
			if test.change != nil {
				test.change(&in)
			}
			set, err := New(in, test.desired)
			if err != nil {
				t.Fatal(err)
			}
			if set.NeedsCleanUp != test.cleanUp || set.NeedsWitness != test.witness {
				t.Errorf("the parent needs the finalizer: %t, and a witness: %t", set.NeedsCleanUp, set.NeedsWitness)
			}
			var kinds []string
			for kind, mapping := range set.Mappings {
				if mapping == nil || len(set.Namespaces) > len(set.Mappings) {
					t.Errorf("%s has the mapping %v", kind, mapping)
				}
				kinds = append(kinds, fmt.Sprintf("%s%s", kind, sets.List(set.Namespaces[kind])))
			}
			slices.Sort(kinds)
			if got := strings.Join(kinds, " "); got != test.kinds {
				t.Errorf("got the kinds %s, want %s", got, test.kinds)
			}
			if len(set.Stages) != len(test.desired.Stages) {
				t.Errorf("got %d stages, want %d", len(set.Stages), len(test.desired.Stages))
			}
		})
	}
}

// The keys identify the children that must not be pruned.
func TestNew_KeysAreThoseOfAllKnownKinds(t *testing.T) {
	set, err := New(newInput(t), stages([]Spec{configMap()}, []Spec{
		{Object: newObject("v1", "Secret", "", "b"), Retain: true}, {Object: newObject("v1", "Unknown", "", "c")},
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := map[Key]bool{
		{Kind: configMapKind, Name: "default/a"}:                    true,
		{Kind: schema.GroupKind{Kind: "Secret"}, Name: "default/b"}: true,
	}
	if !maps.Equal(set.Keys, want) {
		t.Errorf("got %v, want %v", set.Keys, want)
	}
}

// Children keep the order in which they are desired. Groups are parts of a stage.
func TestNew_OrdersChildren(t *testing.T) {
	account, namespace := newObject("v1", "ServiceAccount", "", "b"), newObject("v1", "Namespace", "", "c")
	set, err := New(newInput(t, crossNamespace(namespaceKind)), stages(
		[]Spec{configMap(), {Object: account}, {Object: namespace}}, nil, []Spec{configMap(named("d"))},
	))
	if err != nil {
		t.Fatal(err)
	}
	for stage, want := range [][]string{{"default/a", "default/b", "c"}, nil, {"default/d"}} {
		if got := namesOf(set.Stages[stage]); !slices.Equal(got, want) {
			t.Errorf("stage %d: got %q, want %q", stage, got, want)
		}
		for _, child := range set.Stages[stage] {
			if child.Stage != stage {
				t.Errorf("%s is in stage %d, want %d", child.Name, child.Stage, stage)
			}
		}
	}
	for i, want := range []int{2, 1, 0} {
		if got := set.Stages[0][i].Group; got != want {
			t.Errorf("%s is in group %d, want %d", set.Stages[0][i].Name, got, want)
		}
	}
}
