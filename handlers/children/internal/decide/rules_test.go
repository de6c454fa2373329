package decide

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const testNames Names = "platform.example.com"

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// testParent returns the parent default/p.
func testParent() *Parent {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"})
	object.SetNamespace("default")
	object.SetName("p")
	object.SetUID("parent")
	return &Parent{Unstructured: object, Names: testNames}
}

// change changes an object.
type change func(*unstructured.Unstructured)

// testObject returns the config map default/a with the changes.
func testObject(changes ...change) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
	object.SetNamespace("default")
	object.SetName("a")
	object.SetUID("child")
	object.SetResourceVersion("10")
	for _, change := range changes {
		change(object)
	}
	return object
}

func inNamespace(name string) change {
	return func(object *unstructured.Unstructured) { object.SetNamespace(name) }
}

func label(value string) change {
	return func(object *unstructured.Unstructured) {
		object.SetLabels(map[string]string{testNames.ParentLabel(): value})
	}
}

func annotation(key, value string) change {
	return func(object *unstructured.Unstructured) {
		annotations := object.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[key] = value
		object.SetAnnotations(annotations)
	}
}

func controlledBy(uid types.UID) change {
	return func(object *unstructured.Unstructured) {
		object.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: "example.com/v1", Kind: "Widget", Name: "p", UID: uid, Controller: ptr.To(true),
		}})
	}
}

func finalized(object *unstructured.Unstructured) { object.SetFinalizers([]string{"example.com/hold"}) }

// marked adds a mark with a record. It must be the last change, because it contains the name of the object.
func marked(record string) change {
	return func(object *unstructured.Unstructured) {
		label(IdentityLabel(testParent().Identity()))(object)
		annotation(testNames.ParentLabel(), record)(object)
		annotation(testNames.Self(), object.GetNamespace()+"/"+object.GetName())(object)
	}
}

// recordOf returns the record of a parent with the name of the test's parent.
func recordOf(uid, namespace types.UID) string {
	return fmt.Sprintf(`{"parent":%q,"uid":%q,"namespaceUID":%q}`, testParent().Identity(), uid, namespace)
}

var errUnreadable = errors.New("cannot be read")

// claimCases contains at least one case for each row of claimRules. Each case is also the name of a situation.
var claimCases = []struct {
	situation string
	object    *unstructured.Unstructured
	child     Child
	namespace error // why the namespace cannot be read
	want      Claim
	message   string // a part of the error
}{
	{
		situation: "another controller has taken a child of this Reconciler",
		object:    testObject(controlledBy("other"), annotation(testNames.Applied(), "h")),
		message:   "its controller is Widget p with UID other",
	},
	{
		situation: "a child",
		object:    testObject(controlledBy("parent"), label("parent"), annotation(testNames.Applied(), "h")), want: Own,
	},
	{
		situation: "a child whose label was removed",
		object:    testObject(controlledBy("parent"), annotation(testNames.Applied(), "h")), want: Own,
	},
	{
		situation: "another controller has created an object for the same parent",
		object:    testObject(controlledBy("parent")), message: "adoption is not enabled",
	},
	{
		situation: "a child whose owner reference was removed",
		object:    testObject(label("parent")), want: Take,
	},
	{
		situation: "a child of an earlier parent after a restore",
		object:    testObject(label("earlier"), annotation(testNames.Applied(), "h.names")),
		message:   "set the annotation platform.example.com/restored=parent",
	},
	{
		situation: "a child of an earlier parent that someone has confirmed",
		object: testObject(label("earlier"), annotation(testNames.Applied(), "h.names"),
			annotation(testNames.Restored(), "parent")),
		want: Take,
	},
	{
		situation: "a child of an earlier parent that the namespace confirms",
		object: testObject(label("earlier"), annotation(testNames.Applied(), "h.names"),
			annotation(testNames.Restored(), "namespace")),
		child: Child{Hash: "other.names"}, want: Take,
	},
	{
		situation: "the namespace confirms an object that was not a child with this name",
		object: testObject(label("earlier"), annotation(testNames.Applied(), "h.others"),
			annotation(testNames.Restored(), "namespace")),
		child: Child{Hash: "other.names"}, message: "it was the child of an earlier parent",
	},
	{
		situation: "a mark of a later version",
		object:    testObject(inNamespace("far"), marked(`{"format":99}`)),
		message:   "does not belong to this parent: annotation platform.example.com/parent: a later version",
	},
	{
		situation: "the namespace that would show whether the parent was restored cannot be read",
		object:    testObject(inNamespace("far"), marked(recordOf("earlier", "namespace"))),
		namespace: errUnreadable, message: errUnreadable.Error(),
	},
	{
		situation: "a marked child",
		object:    testObject(inNamespace("far"), marked(recordOf("parent", ""))), child: Child{Marked: true}, want: Own,
	},
	{
		situation: "a marked child that now has an owner reference",
		object:    testObject(marked(recordOf("parent", ""))), want: Take,
	},
	{
		situation: "a marked child of a parent that was created again in the same namespace",
		object:    testObject(inNamespace("far"), marked(recordOf("earlier", "namespace"))),
		child:     Child{Marked: true}, want: Take,
	},
	{
		situation: "a marked child of a parent in an earlier namespace with the same name",
		object:    testObject(inNamespace("far"), marked(recordOf("earlier", "earlier namespace"))),
		child:     Child{Marked: true},
		message:   "with the same name; if the parent has been restored from a backup, set the annotation platform",
	},
	{
		situation: "a mark whose record was edited",
		object:    testObject(inNamespace("far"), marked("{")), child: Child{Marked: true},
		message: "its annotations do not",
	},
	{
		situation: "a marked child of another parent",
		object: testObject(inNamespace("far"), marked(`{"parent":"Widget.example.com/default/q","uid":"other"}`),
			label(IdentityLabel("Widget.example.com/default/q"))),
		child: Child{Marked: true, Adopt: true}, message: "it is the child of another parent",
	},
	{
		situation: "an object of nobody, with Adopt",
		object:    testObject(), child: Child{Adopt: true}, want: Take,
	},
	{
		situation: "an object that an earlier parent retained",
		object:    testObject(annotation(testNames.Retained(), "x")),
		message:   "an earlier parent with the same name has kept it",
	},
	{
		situation: "an object of nobody",
		object:    testObject(), message: "this controller did not create it, and adoption is not enabled",
	},
	{
		situation: "a copy of a marked child, with another name",
		object: testObject(inNamespace("far"), marked(recordOf("parent", "")),
			func(object *unstructured.Unstructured) { object.SetName("copy") }),
		child: Child{Marked: true}, message: "adoption is not enabled",
	},
}

// namespaceWith returns the UID of the namespace, or an error.
func namespaceWith(err error) Namespace {
	return func() (types.UID, error) { return "namespace", err }
}

func TestClaimOf(t *testing.T) {
	for _, test := range claimCases {
		t.Run(test.situation, func(t *testing.T) {
			claim, err := ClaimOf(testParent(), &test.child, test.object, namespaceWith(test.namespace))
			if claim != test.want || (err != nil) != (test.want == Refuse) {
				t.Fatalf("got the claim %d and %v, want %d", claim, err, test.want)
			}
			if err != nil && !strings.Contains(err.Error(), test.message) {
				t.Errorf("got %q, want %q", err, test.message)
			}
			if err != nil && test.namespace == nil && !errors.Is(err, ErrNotOwned) {
				t.Errorf("%v does not wrap ErrNotOwned", err)
			}
		})
	}
}

var deletionCases = []struct {
	situation string
	object    *unstructured.Unstructured
	namespace error
	want      bool
}{
	{
		"a retained child",
		testObject(controlledBy("parent"), label("parent"), annotation(testNames.Retained(), "x")), nil, false,
	},
	{"a child", testObject(controlledBy("parent"), label("parent")), nil, true},
	{"a child of another controller of the same parent", testObject(controlledBy("parent")), nil, false},
	{"a child whose owner reference was removed", testObject(label("parent")), nil, false},
	{"a mark where an owner reference would have an effect", testObject(marked(recordOf("parent", ""))), nil, false},
	{
		"a marked child that has got a controller",
		testObject(inNamespace("far"), controlledBy("other"), marked(recordOf("parent", ""))), nil, false,
	},
	{"a marked child", testObject(inNamespace("far"), marked(recordOf("parent", ""))), nil, true},
	{
		"a marked child of a parent that was created again",
		testObject(inNamespace("far"), marked(recordOf("earlier", "namespace"))), nil, true,
	},
	{
		"a marked child of a parent in an earlier namespace",
		testObject(inNamespace("far"), marked(recordOf("earlier", "earlier namespace"))), nil, false,
	},
	{
		"a marked child, and the namespace cannot be read",
		testObject(inNamespace("far"), marked(recordOf("earlier", "namespace"))), errUnreadable, false,
	},
}

func TestIsChild(t *testing.T) {
	for _, test := range deletionCases {
		t.Run(test.situation, func(t *testing.T) {
			isChild, err := IsChild(testParent(), test.object, namespaceWith(test.namespace))
			if isChild != test.want || !errors.Is(err, test.namespace) {
				t.Errorf("got %t, %v", isChild, err)
			}
		})
	}
}

// A child of exactly this parent is deleted when the parent is gone, and one of an earlier parent is not.
func TestIsExactly(t *testing.T) {
	for situation, test := range map[string]struct {
		object *unstructured.Unstructured
		want   bool
	}{
		"a marked child": {testObject(inNamespace("far"), marked(recordOf("parent", ""))), true},
		"a marked child of a restored parent": {
			testObject(inNamespace("far"), marked(recordOf("earlier", "namespace"))), false,
		},
		"a retained child": {
			testObject(inNamespace("far"), annotation(testNames.Retained(), "x"), marked(recordOf("parent", ""))), false,
		},
		"a child with an owner reference": {testObject(controlledBy("parent"), label("parent")), false},
	} {
		t.Run(situation, func(t *testing.T) {
			got, err := IsExactly(testParent(), test.object, namespaceWith(nil))
			if got != test.want || err != nil {
				t.Errorf("got %t, %v", got, err)
			}
		})
	}
}

func createdAt(t time.Time) change {
	return func(object *unstructured.Unstructured) { object.SetCreationTimestamp(metav1.NewTime(t)) }
}

func deletesVolumes(object *unstructured.Unstructured) {
	object.Object["spec"] = map[string]any{
		"persistentVolumeClaimRetentionPolicy": map[string]any{"whenDeleted": "Delete"},
	}
}

var recreationCases = []struct {
	situation string
	object    *unstructured.Unstructured
	kind      schema.GroupKind
	deleted   time.Time // when this run deleted the child
	want      string    // a part of the obstacle; empty if the child may be recreated
}{
	{situation: "an ordinary child", object: testObject()},
	{
		situation: "an adopted child", object: testObject(annotation(testNames.Adopted(), "true")), want: "it was adopted",
	},
	{situation: "a child with a finalizer", object: testObject(finalized), want: "it has finalizers: example.com/hold"},
	{
		situation: "a StatefulSet that deletes its volumes", object: testObject(deletesVolumes),
		kind: schema.GroupKind{Group: "apps", Kind: "StatefulSet"}, want: "deletes volumes",
	},
	{situation: "another kind with the same field", object: testObject(deletesVolumes)},
	{
		situation: "a child that was recreated for this desired state",
		object:    testObject(annotation(testNames.Recreated(), "hash"), createdAt(start.Add(-time.Hour))),
		want:      "for this desired state",
	},
	{
		situation: "a child that another leader recreated a short time ago",
		object:    testObject(annotation(testNames.Recreated(), "earlier"), createdAt(start.Add(-time.Second))),
		want:      "in the last 1m0s",
	},
	{
		situation: "a child that was recreated long ago",
		object:    testObject(annotation(testNames.Recreated(), "earlier"), createdAt(start.Add(-time.Hour))),
	},
	{
		situation: "a child that this run recreated a short time ago", object: testObject(),
		deleted: start.Add(-time.Second), want: "in the last 1m0s",
	},
}

func (c recreationCase) obstacle() string {
	child := &Child{GroupKind: c.kind, Hash: "hash"}
	controlledBy("parent")(c.object)
	label("parent")(c.object)
	obstacle, err := recreationCandidate{
		newSubject(testParent(), child, c.object, namespaceWith(nil)), c.object, &recreation{deleted: c.deleted},
		moment(start),
	}.obstacle()
	if err != nil {
		return err.Error()
	}
	return obstacle
}

type recreationCase struct {
	kind    schema.GroupKind
	object  *unstructured.Unstructured
	deleted time.Time
}

func TestObstacle(t *testing.T) {
	for _, test := range recreationCases {
		t.Run(test.situation, func(t *testing.T) {
			got := recreationCase{test.kind, test.object.DeepCopy(), test.deleted}.obstacle()
			if !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Without any single row, a case has another result.
func TestRules_EachRowMatters(t *testing.T) {
	claims := func() (all []string) {
		for _, test := range claimCases {
			claim, err := ClaimOf(testParent(), &test.child, test.object, namespaceWith(test.namespace))
			all = append(all, fmt.Sprint(claim, err))
		}
		return all
	}
	eachRowMatters(t, &claimRules, func(row claimRule) string { return row.when }, claims)
	deletions := func() (all []string) {
		for _, test := range deletionCases {
			isChild, err := IsChild(testParent(), test.object, namespaceWith(test.namespace))
			all = append(all, fmt.Sprint(isChild, err))
		}
		return all
	}
	eachRowMatters(t, &deletionRules, func(row deletionRule) string { return row.when }, deletions)
	obstacles := func() (all []string) {
		for _, test := range recreationCases {
			all = append(all, recreationCase{test.kind, test.object.DeepCopy(), test.deleted}.obstacle())
		}
		return all
	}
	eachRowMatters(t, &recreationRules, func(row recreationRule) string { return row.when }, obstacles)
}

func eachRowMatters[R any](t *testing.T, rules *[]R, name func(R) string, results func() []string) {
	t.Helper()
	all, want := *rules, results()
	defer func() { *rules = all }()
	for i, row := range all {
		*rules = slices.Delete(slices.Clone(all), i, i+1)
		if slices.Equal(results(), want) {
			t.Errorf("no case needs the row %q", name(row))
		}
	}
}
