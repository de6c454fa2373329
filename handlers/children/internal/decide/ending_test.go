package decide

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// doomed returns a child with a stage. It is in another namespace than the parent, so that Kubernetes does not delete
// it.
func doomed(stage int, kind, name string, changes ...change) Doomed {
	object := testObject(append([]change{inNamespace("far")}, changes...)...)
	object.SetName(name)
	return Doomed{
		Key: Key{Kind: schema.GroupKind{Kind: kind}, Name: "far/" + name}, Stage: stage, Object: object,
		Deleting: object.GetDeletionTimestamp() != nil,
	}
}

func TestCompareDoomed_OrderDoesNotDependOnTheCache(t *testing.T) {
	want := []Doomed{
		doomed(2, "Secret", "b"), doomed(1, "ConfigMap", "a"), doomed(1, "ConfigMap", "b"), doomed(1, "Service", "a"),
		doomed(0, "ConfigMap", "a"),
	}
	for range 10 {
		got := slices.Clone(want)
		rand.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		slices.SortFunc(got, compareDoomed)
		if !slices.EqualFunc(got, want, func(a, b Doomed) bool { return a.Key == b.Key && a.Stage == b.Stage }) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

func TestEnding(t *testing.T) {
	unsupported := apierrors.NewMethodNotSupported(configMaps.GroupResource(), "delete")
	near := func(object Doomed) Doomed {
		object.Object.SetNamespace("default")
		return object
	}
	late := start.Add(UnservedPeriod + time.Second)
	for situation, test := range map[string]struct {
		deleting    bool // whether the parent is being deleted
		doomed      []Doomed
		answers     map[string]Deleting // by the name of the child; none for a deletion that succeeds
		asked       []string
		remaining   []string // with "!" for those that are being deleted
		unsupported []string
		postponed   bool
	}{
		"nothing": {},
		"one stage": {
			doomed: []Doomed{doomed(0, "A", "b"), doomed(0, "A", "a")}, asked: []string{"a", "b"},
			remaining: []string{"a!", "b!"},
		},
		"two stages": {
			doomed: []Doomed{doomed(0, "A", "first"), doomed(1, "A", "last")}, asked: []string{"last"},
			remaining: []string{"last!", "first"}, postponed: true,
		},
		"the last stage is being deleted": {
			doomed:    []Doomed{doomed(0, "A", "first"), doomed(1, "A", "last", deleting)},
			remaining: []string{"last!", "first"}, postponed: true,
		},
		"a deletion fails": {
			doomed:  []Doomed{doomed(0, "A", "first"), doomed(1, "A", "last")},
			answers: map[string]Deleting{"last": {Err: errUnreadable}}, asked: []string{"last"},
			remaining: []string{"last!", "first"}, postponed: true,
		},
		"a deletion is forbidden, and the child can be forged": {
			doomed:  []Doomed{doomed(0, "A", "first"), doomed(1, "A", "last")},
			answers: map[string]Deleting{"last": {Err: forbidden()}}, asked: []string{"last", "first"},
			remaining: []string{"first!"},
		},
		"a deletion is forbidden, and the parent is being deleted": {
			deleting: true, doomed: []Doomed{doomed(0, "A", "first"), doomed(1, "A", "last")},
			answers: map[string]Deleting{"last": {Err: forbidden()}}, asked: []string{"last"},
			remaining: []string{"last!", "first"}, postponed: true,
		},
		"a deletion is forbidden, and Kubernetes deletes the child too": {
			deleting: true, doomed: []Doomed{near(doomed(0, "A", "first"))},
			answers: map[string]Deleting{"first": {Err: forbidden()}}, asked: []string{"first"},
		},
		"a deletion fails for a while, and Kubernetes deletes the child too": {
			deleting: true, doomed: []Doomed{near(doomed(0, "A", "first"))},
			answers: map[string]Deleting{"first": {Err: unexplained()}}, asked: []string{"first"},
			remaining: []string{"first!"},
		},
		"a deletion is not supported, and the parent is being deleted": {
			deleting: true, doomed: []Doomed{doomed(0, "A", "first"), doomed(1, "A", "last")},
			answers: map[string]Deleting{"last": {Err: unsupported}}, asked: []string{"last", "first"},
			remaining: []string{"first!"}, unsupported: []string{"last"},
		},
		"a deletion is not supported": {
			doomed: []Doomed{doomed(1, "A", "last")}, answers: map[string]Deleting{"last": {Err: unsupported}},
			asked: []string{"last"}, remaining: []string{"last!"},
		},
		"the type is not served for a short time": {
			deleting: true, doomed: []Doomed{doomed(1, "A", "last")}, answers: map[string]Deleting{"last": {Err: gone()}},
			asked: []string{"last"}, remaining: []string{"last!"},
		},
		"the type is not served any longer": {
			deleting: true, doomed: []Doomed{doomed(1, "A", "last")},
			answers: map[string]Deleting{"last": {Err: gone(), At: late}}, asked: []string{"last"},
			unsupported: []string{"last"},
		},
	} {
		t.Run(situation, func(t *testing.T) {
			parent := testParent()
			if test.deleting {
				parent.SetDeletionTimestamp(&metav1.Time{Time: start})
			}
			ending := BeginEnding(parent, test.doomed)
			defer ending.Stop()
			var asked []string
			child, more := ending.First()
			for more {
				asked = append(asked, child.Object.GetName())
				answer := test.answers[child.Object.GetName()]
				if answer.At.IsZero() {
					answer.At = start
				}
				child, more = ending.Next(answer)
			}
			if !slices.Equal(asked, test.asked) {
				t.Errorf("asked for %q, want %q", asked, test.asked)
			}
			if got := namesOf(ending.Remaining); !slices.Equal(got, test.remaining) || ending.IsPostponed != test.postponed {
				t.Errorf("%q remain (postponed: %t), want %q", got, ending.IsPostponed, test.remaining)
			}
			if got := namesOf(ending.Unsupported); !slices.Equal(got, test.unsupported) {
				t.Errorf("%q are not supported, want %q", got, test.unsupported)
			}
		})
	}
}

// namesOf returns the names of children, with "!" for those that are being deleted.
func namesOf(all []Doomed) (names []string) {
	for _, child := range all {
		name := child.Object.GetName()
		if child.Deleting {
			name += "!"
		}
		names = append(names, name)
	}
	return names
}

// An object is deleted or released only if it is a child when this happens.
func TestDecision_OfRemovals(t *testing.T) {
	marks := marked(recordOf("parent", ""))
	child := testObject(inNamespace("far"), marks)
	changed := testObject(inNamespace("far"), marks, func(object *unstructured.Unstructured) {
		object.SetResourceVersion("11")
	})
	foreign := testObject(inNamespace("far"), controlledBy("other"))
	replaced := testObject(inNamespace("far"), marks, func(object *unstructured.Unstructured) { object.SetUID("another") })
	deletion := func(parentIsGone bool) func(object *unstructured.Unstructured) *Decision {
		return func(object *unstructured.Unstructured) *Decision {
			return BeginDeletion(testParent(), object, parentIsGone, start)
		}
	}
	release := func(object *unstructured.Unstructured) *Decision {
		return BeginRelease(testParent(), object, "bucket", start)
	}
	for situation, test := range map[string]struct {
		begin     func(*unstructured.Unstructured) *Decision
		object    *unstructured.Unstructured
		exchanges []exchange
		want      Outcome
		err       error
	}{
		"a child is deleted":               {deletion(false), child, []exchange{{"Delete at 10", Answer{}}}, Removed, nil},
		"a child of a parent that is gone": {deletion(true), child, []exchange{{"Delete at 10", Answer{}}}, Removed, nil},
		"a child of a restored parent that is gone": {
			deletion(true), testObject(inNamespace("far"), marked(recordOf("earlier", "namespace"))),
			[]exchange{{"ReadNamespace", Answer{Namespace: "namespace"}}}, Unchanged, nil,
		},
		"a foreign object":    {deletion(false), foreign, nil, Unchanged, nil},
		"it is being deleted": {deletion(false), testObject(inNamespace("far"), deleting, marks), nil, Unchanged, nil},
		"it has disappeared":  {deletion(false), child, []exchange{{"Delete at 10", Answer{Err: gone()}}}, Vanished, nil},
		"it cannot be deleted": {
			deletion(false), child, []exchange{{"Delete at 10", Answer{Err: errUnreadable}}}, Unchanged, errUnreadable,
		},
		"it was changed": {
			deletion(false), child, []exchange{
				{"Delete at 10", Answer{Err: conflict()}}, {"Read after 10ms", Answer{Object: changed}},
				{"Delete at 11", Answer{}},
			}, Removed, nil,
		},
		"it was given away": {
			deletion(false), child, []exchange{
				{"Delete at 10", Answer{Err: conflict()}}, {"Read after 10ms", Answer{Object: foreign}},
			}, Unchanged, nil,
		},
		"it was replaced": {
			deletion(false), child, []exchange{
				{"Delete at 10", Answer{Err: conflict()}}, {"Read after 10ms", Answer{Object: replaced}},
			}, Vanished, nil,
		},
		"it was deleted in the meantime": {
			deletion(false), child, []exchange{{"Delete at 10", Answer{Err: conflict()}}, {"Read after 10ms", Answer{}}},
			Vanished, nil,
		},
		"it cannot be read again": {
			deletion(false), child, []exchange{
				{"Delete at 10", Answer{Err: conflict()}}, {"Read after 10ms", Answer{Err: errUnreadable}},
			}, Unchanged, errUnreadable,
		},
		"a child is released":          {release, child, []exchange{{"RemoveMark at 10", Answer{}}}, Removed, nil},
		"a foreign object is released": {release, foreign, nil, Unchanged, nil},
	} {
		t.Run(situation, func(t *testing.T) {
			decision := test.begin(test.object)
			defer decision.Stop()
			operation, more := decision.First()
			for i, exchange := range test.exchanges {
				if !more || text(operation) != exchange.asks || operation.Reason == "" {
					t.Fatalf("operation %d: got %q (%t), want %q", i, text(operation), more, exchange.asks)
				}
				operation, more = decision.Next(exchange.answer)
			}
			if verdict := decision.Verdict(); more || verdict.Outcome != test.want || !errors.Is(verdict.Err, test.err) {
				t.Errorf("got %d, %v, want %d, %v", verdict.Outcome, verdict.Err, test.want, fmt.Sprint(test.err))
			}
		})
	}
}
