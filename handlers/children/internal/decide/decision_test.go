package decide

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// desiredChild returns the desired config map default/a with the given data.
func desiredChild(value string, changes ...change) *Child {
	template := testObject(controlledBy("parent"), label("parent"), annotation(testNames.Applied(), "hash-of-"+value))
	template.SetUID("")
	template.SetResourceVersion("")
	template.Object["data"] = map[string]any{"key": value}
	for _, change := range changes {
		change(template)
	}
	return &Child{
		ID: "configmaps.v1 default/a", GroupKind: schema.GroupKind{Kind: "ConfigMap"}, Resource: configMaps,
		Template: template, Hash: "hash-of-" + value,
	}
}

// stored returns the child as the API server stores it, with the given resourceVersion.
func stored(child *Child, version string, changes ...change) *unstructured.Unstructured {
	object := child.Template.DeepCopy()
	object.SetUID("child")
	object.SetResourceVersion(version)
	object.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: string(testNames), Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1",
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:key":{}},"f:metadata":{"f:labels":` +
			`{"f:platform.example.com/parent":{}},"f:annotations":{"f:platform.example.com/applied":{}},` +
			`"f:ownerReferences":{"k:{\"uid\":\"parent\"}":{}}}}`),
	}})
	for _, change := range changes {
		change(object)
	}
	return object
}

func deleting(object *unstructured.Unstructured) {
	object.SetDeletionTimestamp(&metav1.Time{Time: start.Add(-time.Minute)})
}

// exchange is an operation and its answer.
type exchange struct {
	asks   string // the kind of the operation, and what else matters; see text
	answer Answer
}

// text returns the kind of an operation, and what the tests check about it.
func text(operation Operation) string {
	parts := []string{operation.Kind.String()}
	if operation.After > 0 {
		parts = append(parts, "after", operation.After.String())
	}
	version := operation.ResourceVersion
	if operation.Object != nil && operation.Kind.IsWrite() {
		version = operation.Object.GetResourceVersion()
	}
	switch {
	case operation.Kind == Create && version != createOnlyVersion:
		parts = append(parts, "without the precondition")
	case operation.Kind.IsWrite() && operation.Kind != Create:
		parts = append(parts, "at", version)
	}
	return strings.Join(parts, " ")
}

func conflict() error {
	return apierrors.NewConflict(configMaps.GroupResource(), "a", errors.New("test"))
}

func invalid() error { return apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, "a", nil) }

func forbidden() error {
	return apierrors.NewForbidden(configMaps.GroupResource(), "a", errors.New("test"))
}

func exists() error { return apierrors.NewAlreadyExists(configMaps.GroupResource(), "a") }

func unexplained() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: 500, Message: "test"}}
}

func gone() error { return apierrors.NewNotFound(configMaps.GroupResource(), "a") }

// Each conversation is what a decision asks for, what it is answered, and what it concludes.
func TestDecision_Conversations(t *testing.T) {
	one, two := desiredChild("one"), desiredChild("two")
	recreated, retained := desiredChild("two"), desiredChild("two")
	recreated.Recreate, retained.Retain, retained.Marked = true, true, true
	adopting := desiredChild("two")
	adopting.Adopt = true
	grace := int64(-1)
	stuck := stored(one, "1", deleting, func(object *unstructured.Unstructured) {
		object.SetDeletionGracePeriodSeconds(&grace)
	})
	for situation, test := range map[string]struct {
		child     *Child
		seen      Seen
		facts     Facts
		known     Known
		exchanges []exchange
		want      Outcome
		err       error
		message   string // a part of the error
		noObject  bool
	}{
		"the child does not exist": {
			child: one, exchanges: []exchange{
				{"MayCreate", Answer{}},
				{"Create", Answer{Object: stored(one, "1")}},
			}, want: Created,
		},
		"the parent was read before": {
			child: one, facts: Facts{ParentExists: true},
			exchanges: []exchange{{"Create", Answer{Object: stored(one, "1")}}}, want: Created,
		},
		"the parent is gone": {
			child: one, exchanges: []exchange{{"MayCreate", Answer{Err: ErrParentGone}}}, err: ErrParentGone, noObject: true,
		},
		"the inventory has no room for the child": {
			child: one, exchanges: []exchange{{"MayCreate", Answer{Unrecorded: errUnreadable}}}, err: errUnreadable,
			noObject: true,
		},
		"there is no witness": {
			child: one, facts: Facts{ParentExists: true, Unwitnessed: errUnreadable}, err: errUnreadable, noObject: true,
		},
		"the cache does not show whether the child exists, and it does not": {
			child: one, seen: Seen{Unknown: true}, exchanges: []exchange{
				{"Read", Answer{}}, {"MayCreate", Answer{}}, {"Create", Answer{Object: stored(one, "1")}},
			}, want: Created,
		},
		"the cache does not show whether the child exists, and it does": {
			child: one, seen: Seen{Unknown: true}, exchanges: []exchange{{"Read", Answer{Object: stored(one, "1")}}},
		},
		"the child cannot be read": {
			child: one, seen: Seen{Err: errUnreadable}, err: errUnreadable, noObject: true,
		},
		"an object of nobody has appeared in the meantime": {
			child: one, facts: Facts{ParentExists: true}, exchanges: []exchange{
				{"Create", Answer{Err: conflict()}}, {"Read after 10ms", Answer{Object: testObject()}},
			}, err: ErrAdoptionNotEnabled, noObject: true,
		},
		"the creation is forbidden, and the object exists": {
			child: one, facts: Facts{ParentExists: true}, exchanges: []exchange{
				{"Create", Answer{Err: forbidden()}}, {"Read", Answer{Object: stored(one, "1")}},
			},
		},
		"the creation is forbidden": {
			child: one, facts: Facts{ParentExists: true}, exchanges: []exchange{
				{"Create", Answer{Err: forbidden()}}, {"Read", Answer{}},
			}, message: "forbidden", noObject: true,
		},
		"the object has another owner": {
			child: one, seen: Seen{Object: testObject(controlledBy("other"))}, err: ErrNotOwned, noObject: true,
		},
		"the object is adopted": {
			child: adopting, seen: Seen{Object: testObject()}, exchanges: []exchange{
				{"MayAdopt", Answer{}}, {"Apply at 10", Answer{Object: stored(two, "11")}},
			}, want: Applied,
		},
		"the parent is gone before it adopts": {
			child: adopting, seen: Seen{Object: testObject()}, exchanges: []exchange{{"MayAdopt", Answer{Err: errUnreadable}}},
			err: errUnreadable, noObject: true,
		},
		"the child has its desired state": {child: one, seen: Seen{Object: stored(one, "1")}},
		"the child differs": {
			child: two, seen: Seen{Object: stored(one, "1")},
			exchanges: []exchange{{"Apply at 1", Answer{Object: stored(two, "2")}}}, want: Applied,
		},
		"the child was changed in the meantime": {
			child: two, seen: Seen{Object: stored(one, "1")}, exchanges: []exchange{
				{"Apply at 1", Answer{Err: conflict()}}, {"Read after 10ms", Answer{Object: stored(one, "2")}},
				{"Apply at 2", Answer{Object: stored(two, "3")}},
			}, want: Applied,
		},
		"the child was deleted in the meantime": {
			child: two, seen: Seen{Object: stored(one, "1")}, exchanges: []exchange{
				{"Apply at 1", Answer{Err: conflict()}}, {"Read after 10ms", Answer{}}, {"MayCreate", Answer{}},
				{"Create", Answer{Object: stored(two, "3")}},
			}, want: Created,
		},
		"the child is changed again and again": {
			child: two, seen: Seen{Object: stored(one, "1")}, exchanges: []exchange{
				{"Apply at 1", Answer{Err: conflict()}}, {"Read after 10ms", Answer{Object: stored(one, "2")}},
				{"Apply at 2", Answer{Err: conflict()}}, {"Read after 10ms", Answer{Object: stored(one, "3")}},
				{"Apply at 3", Answer{Err: conflict()}}, {"Read after 10ms", Answer{Object: stored(one, "4")}},
				{"Apply at 4", Answer{Err: conflict()}}, {"Read after 10ms", Answer{Object: stored(one, "5")}},
				{"Apply at 5", Answer{Err: conflict()}},
			}, message: "test",
		},
		"the update is invalid": {
			child: two, seen: Seen{Object: stored(one, "1")},
			exchanges: []exchange{{"Apply at 1", Answer{Err: invalid()}}}, message: "invalid",
		},
		"the update is invalid, and the child is recreated": {
			child: recreated, seen: Seen{Object: stored(one, "1")}, exchanges: []exchange{
				{"Apply at 1", Answer{Err: invalid()}}, {"TryCreate", Answer{Err: exists()}},
				{"Read", Answer{Object: stored(one, "1")}}, {"ReadParent", Answer{}}, {"Delete at 1", Answer{}},
				{"Read", Answer{}}, {"MayCreate", Answer{}}, {"Create", Answer{Object: stored(two, "3")}},
			}, want: Created,
		},
		"the update is invalid, and so is a new child": {
			child: recreated, seen: Seen{Object: stored(one, "1")}, exchanges: []exchange{
				{"Apply at 1", Answer{Err: invalid()}}, {"TryCreate", Answer{Err: invalid()}},
			}, message: "it is not recreated, because a dry run of its creation fails",
		},
		"the update is invalid, and the child has a finalizer": {
			child: recreated, seen: Seen{Object: stored(one, "1", finalized)}, exchanges: []exchange{
				{"Apply at 1", Answer{Err: invalid()}}, {"TryCreate", Answer{Err: exists()}},
				{"Read", Answer{Object: stored(one, "1", finalized)}},
			}, err: ErrImmutable, message: "finalizers",
		},
		"the update is invalid, and the parent is gone": {
			child: recreated, seen: Seen{Object: stored(one, "1")}, exchanges: []exchange{
				{"Apply at 1", Answer{Err: invalid()}}, {"TryCreate", Answer{Err: exists()}},
				{"Read", Answer{Object: stored(one, "1")}}, {"ReadParent", Answer{Err: ErrParentGone}},
			}, err: ErrParentGone, noObject: true,
		},
		"the update is invalid, and the child was changed before it is deleted": {
			child: recreated, seen: Seen{Object: stored(one, "1")}, exchanges: []exchange{
				{"Apply at 1", Answer{Err: invalid()}}, {"TryCreate", Answer{Err: exists()}},
				{"Read", Answer{Object: stored(one, "2")}}, {"Read after 10ms", Answer{Object: stored(two, "3")}},
			},
		},
		"the API server gives no reason, and the content is the cause": {
			child: two, seen: Seen{Object: stored(one, "1")}, exchanges: []exchange{
				{"Apply at 1", Answer{Err: unexplained()}}, {"TryApply", Answer{Err: unexplained()}}, {"TryApply", Answer{}},
			}, message: "test",
		},
		"an owned object is being deleted": {
			child: one, seen: Seen{Object: stored(one, "1", deleting)}, want: Waiting,
		},
		"an object of another owner is being deleted": {
			child: one, seen: Seen{Object: testObject(controlledBy("other"), deleting)}, err: ErrNotOwned, noObject: true,
		},
		"a deletion is stuck": {
			child: one, seen: Seen{Object: stuck}, exchanges: []exchange{{"Delete at 1", Answer{}}}, want: Waiting,
		},
		"a deletion is stuck, and the object is gone": {
			child: one, seen: Seen{Object: stuck}, exchanges: []exchange{{"Delete at 1", Answer{Err: gone()}}}, want: Waiting,
		},
		"a deletion is stuck, and the object was replaced": {
			child: one, seen: Seen{Object: stuck}, exchanges: []exchange{
				{"Delete at 1", Answer{Err: conflict()}}, {"Read after 10ms", Answer{Object: testObject(func(
					object *unstructured.Unstructured) {
					object.SetUID("another")
				})}},
			}, want: Waiting,
		},
		"someone has confirmed the child": {
			child: one, seen: Seen{Object: stored(one, "1", annotation(testNames.Restored(), "parent"))},
			exchanges: []exchange{{"RemoveConfirmation at 1", Answer{Object: stored(one, "2")}}}, want: Applied,
		},
		"the API server stores a value with a webhook": {
			child: one, facts: Facts{ParentExists: true}, exchanges: []exchange{
				{"Create", Answer{Object: stored(one, "1", func(object *unstructured.Unstructured) {
					object.Object["data"] = map[string]any{"key": "replaced"}
				})}},
			}, want: Created,
		},
	} {
		t.Run(situation, func(t *testing.T) {
			known := test.known
			decision := Begin(testParent(), test.child, test.facts, test.seen, &known, start)
			defer decision.Stop()
			verdict := verdictOf(t, decision, test.exchanges)
			if verdict.Outcome != test.want || (verdict.Object == nil) != test.noObject {
				t.Errorf("got the outcome %d and %v, want %d", verdict.Outcome, verdict.Object, test.want)
			}
			switch err := verdict.Err; {
			case (err != nil) != (test.err != nil || test.message != ""):
				t.Errorf("got the error %v", err)
			case test.err != nil && !errors.Is(err, test.err):
				t.Errorf("got %v, want %v", err, test.err)
			case err != nil && !strings.Contains(err.Error(), test.message):
				t.Errorf("got %q, want %q", err, test.message)
			}
		})
	}
}

// verdictOf answers the operations of a decision, and returns its verdict. It fails the test if the decision asks for
// other operations, or if an operation has no reason.
func verdictOf(t *testing.T, decision *Decision, exchanges []exchange) Verdict {
	t.Helper()
	operation, more := decision.First()
	for i, exchange := range exchanges {
		if !more || text(operation) != exchange.asks {
			t.Fatalf("operation %d: got %q (%t), want %q", i, text(operation), more, exchange.asks)
		}
		if operation.Reason == "" {
			t.Errorf("operation %d, %s, has no reason", i, operation.Kind)
		}
		answer := exchange.answer
		answer.At = start.Add(time.Duration(i+1) * time.Millisecond)
		operation, more = decision.Next(answer)
	}
	if more {
		t.Fatalf("got the further operation %q", text(operation))
	}
	return decision.Verdict()
}

// The same inputs and answers lead to the same operations, with the same content.
func TestDecision_IsDeterministic(t *testing.T) {
	one, two := desiredChild("one"), desiredChild("two")
	run := func() (all []string) {
		decision := Begin(testParent(), two, Facts{}, Seen{Object: stored(one, "1")}, &Known{}, start)
		defer decision.Stop()
		answers := []Answer{{Err: conflict()}, {Object: stored(one, "2")}, {Object: stored(two, "3")}}
		operation, more := decision.First()
		for i := 0; more; i++ {
			content, err := json.Marshal(operation)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, string(content))
			operation, more = decision.Next(answers[i])
		}
		return all
	}
	if first, second := run(), run(); !slices.Equal(first, second) {
		t.Errorf("got\n%q, and then\n%q", first, second)
	}
}

// A decision can be dropped at any point. It then performs no further operation.
func TestDecision_CanBeStopped(t *testing.T) {
	child := desiredChild("one")
	for answered := range 3 {
		decision := Begin(testParent(), child, Facts{}, Seen{Unknown: true}, &Known{}, start)
		if answered > 0 {
			decision.First()
		}
		if answered > 1 {
			decision.Next(Answer{})
		}
		decision.Stop()
		if operation, more := decision.Next(Answer{}); more {
			t.Errorf("after %d answers and Stop: got the operation %s", answered, operation.Kind)
		}
	}
}

// A field that two clients set, and that leaves the child, is handed over with the value of the other client, unless it
// stays anyway.
func TestDecision_HandsOverContestedFields(t *testing.T) {
	one := desiredChild("one")
	leaves := desiredChild("two")
	leaves.Template.Object["data"] = map[string]any{"other": "x"}
	path := fieldpath.MakePathOrDie("data", "key")
	scaler := metav1.ManagedFieldsEntry{
		Manager: "scaler", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:key":{}}}`),
	}
	shared := func(object *unstructured.Unstructured) {
		object.SetManagedFields(append(object.GetManagedFields(), scaler))
	}
	holds := func(value string) change {
		return func(object *unstructured.Unstructured) { object.Object["data"] = map[string]any{"key": value} }
	}
	for situation, test := range map[string]struct {
		seen  *unstructured.Unstructured
		times int // how often the other client has changed the field
		asks  []string
	}{
		"the object has the value of the child": {stored(one, "1"), 2, []string{"HandOver at 1", "Apply at 2"}},
		"the object has the value of the other": {
			stored(one, "1", holds("16")), 2, []string{"SetManagedFields at 1", "Apply at 2"},
		},
		"the other owns the field already": {stored(one, "1", holds("16"), shared), 2, []string{"Apply at 1"}},
		"the other has changed it once":    {stored(one, "1"), 1, []string{"Apply at 1"}},
	} {
		t.Run(situation, func(t *testing.T) {
			known := &Known{fights: fights{contested: map[string]*contested{path.String(): {
				path: path, value: "16", owner: ownership.Entry{ManagedFieldsEntry: scaler}, times: test.times, last: start,
			}}}}
			decision := Begin(testParent(), leaves, Facts{}, Seen{Object: test.seen}, known, start)
			defer decision.Stop()
			operation, more := decision.First()
			var asks []string
			for more {
				asks = append(asks, text(operation))
				if operation.Kind == HandOver && operation.Manager != "scaler" {
					t.Errorf("the field is handed over to %q", operation.Manager)
				}
				operation, more = decision.Next(Answer{Object: stored(leaves, fmt.Sprint(len(asks)+1))})
			}
			if !slices.Equal(asks, test.asks) {
				t.Errorf("asked for %q, want %q", asks, test.asks)
			}
		})
	}
}
