package instances

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/platformtest"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
)

// newLimited returns a handler for instances whose reconciles share the budget.
func newLimited(t *testing.T, budget *memory.Budget) (dynamiccontroller.Handler, *platformtest.Server) {
	t.Helper()
	r, _, server := newTestReconcilers(t, func() {})
	r.newest.memory = budget
	return r.withinBudget(handlers.Object(handlers.Live(server), r.reconcile, r.gone)), server
}

func storedFlowers(t *testing.T, server *platformtest.Server) *unstructured.Unstructured {
	t.Helper()
	object, err := server.Tracker().Get(websites, flowers.Namespace(), flowers.Name())
	if err != nil {
		t.Fatal(err)
	}
	return object.(*unstructured.Unstructured)
}

func TestMemory_InstanceThatCannotFitIsRefused(t *testing.T) {
	handler, server := newLimited(t, memory.NewBudget(256<<10, 1))
	newFlowers(t, server) // has 100 kB
	if err := handler(t.Context(), flowers); err != nil {
		t.Fatal(err)
	}
	ready := ConditionOf(storedFlowers(t, server), conditionReady)
	if ready == nil || ready.Reason != reasonMemory || !strings.Contains(ready.Message, "at least 0.") {
		t.Errorf("got %+v", ready)
	}
	writes := server.Took()
	if slices.ContainsFunc(writes, func(w string) bool { return strings.Contains(w, "configmaps") }) {
		t.Errorf("wrote %q", writes)
	}
	if err := handler(t.Context(), flowers); err != nil || len(server.Took()) > 0 {
		t.Errorf("got %v and further writes", err)
	}
}

// An instance that needs too much memory can be deleted, because its expressions are not evaluated.
func TestMemory_InstanceThatCannotFitIsDeleted(t *testing.T) {
	handler, server := newLimited(t, memory.NewBudget(256<<10, 1))
	self := newFlowers(t, server)
	now := metav1.Now()
	self.SetDeletionTimestamp(&now)
	self.SetFinalizers([]string{ChildrenFinalizer})
	if err := server.Tracker().Update(websites, self, flowers.Namespace()); err != nil {
		t.Fatal(err)
	}
	_ = handler(t.Context(), flowers) // waits to report the deletion
	if object, err := server.Tracker().Get(websites, flowers.Namespace(), flowers.Name()); err == nil {
		if left := object.(*unstructured.Unstructured).GetFinalizers(); len(left) > 0 {
			t.Errorf("the finalizers %q are left", left)
		}
	}
}

func TestMemory_BusyInstanceIsRequeuedAndClaimsItsMemory(t *testing.T) {
	budget := memory.NewBudget(4<<20, 16)
	handler, server := newLimited(t, budget)
	newFlowers(t, server)
	var others []*memory.Reservation
	for class := range 20 { // each class gets two thirds of what is left
		for {
			_, other := budget.Reserve(t.Context(), fmt.Sprint(class))
			if other.Claim(96<<10) != nil {
				break
			}
			others = append(others, other)
		}
	}
	for range 2 {
		delay, is := dynamiccontroller.RequeueDelay(handler(t.Context(), flowers))
		if !is || delay < busyInterval || delay > 2*busyInterval || len(server.Took()) > 0 {
			t.Fatalf("got a requeue: %t, after %s", is, delay)
		}
	}
	for _, other := range others {
		other.Release()
	}
	if err := handler(t.Context(), flowers); err != nil {
		t.Fatal(err)
	}
	if writes := server.Took(); len(writes) == 0 {
		t.Error("nothing was written after the memory had become available")
	}
}

func TestReduce(t *testing.T) {
	long := strings.Repeat("x", maxCachedBytes)
	managed := `"managedFields":[{"manager":"` + long + `"}]`
	object := func(metadata, rest string) string {
		return `{"apiVersion":"v1","kind":"A","metadata":{"name":"a"` + metadata + `}` + rest + `}`
	}
	for name, test := range map[string]struct{ text, want string }{
		"a small object":        {object("", `,"spec":{"a":1}`), object("", `,"spec":{"a":1}`)},
		"a large spec":          {object("", `,"spec":"`+long+`","status":{"a":1}`), object("", `,"status":{"a":1}`)},
		"large managed fields":  {object(","+managed, `,"spec":1`), object("", "")},
		"a field in upper case": {object("", `,"Status":1,"spec":"`+long+`"`), object("", "")},
		"a large status": {
			object("", `,"status":{"a":"`+long+`","revision":"r","conditions":[1],"observedGeneration":2}`),
			object("", `,"status":{"conditions":[1],"observedGeneration":2,"revision":"r"}`),
		},
		"large labels": {object(`,"labels":{"a":"`+long+`"}`, `,"spec":1`), object(`,"labels":{"a":"`+long+`"}`, "")},
		"a list": {
			`{"apiVersion":"v1","kind":"AList","metadata":{"resourceVersion":"1"},"items":[` +
				object("", `,"spec":"`+long+`"`) + "," + object("", `,"spec":1`) + `]}`,
			`{"apiVersion":"v1","kind":"AList","metadata":{"resourceVersion":"1"},"items":[` +
				object("", "") + "," + object("", `,"spec":1`) + `]}`,
		},
		"not an object": {"[" + long + "]", "[" + long + "]"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Reduce([]byte(test.text))
			if json.Valid([]byte(test.want)) {
				got, test.want = sorted(t, got), string(sorted(t, []byte(test.want)))
			}
			if string(got) != test.want {
				t.Errorf("got %.300s, want %.300s", got, test.want)
			}
		})
	}
}

// Reducing an object before it is decoded does not change how it is cached.
func TestReduceCached_KeepsTheResultOfTransform(t *testing.T) {
	long := strings.Repeat("x", 3*maxCachedBytes)
	for name, text := range map[string]string{
		"an instance": `{"apiVersion":"a/v1","kind":"A","metadata":{"name":"a","uid":"u","finalizers":["` +
			ChildrenFinalizer + `","b"],"annotations":{"a":"b"}},"spec":"` + long +
			`","status":{"revision":"r","conditions":[{"type":"Ready"}]}}`,
		"large labels":   `{"apiVersion":"a/v1","kind":"A","metadata":{"name":"a","labels":{"a":"` + long + `"}},"spec":1}`,
		"a small object": `{"apiVersion":"a/v1","kind":"A","metadata":{"name":"a"},"spec":1}`,
		"a large status": `{"apiVersion":"a/v1","kind":"A","metadata":{"name":"a"},"status":{"a":"` + long + `"}}`,
		"a Blueprint": `{"apiVersion":"platform.example.com/v1alpha1","kind":"Blueprint","metadata":{"name":"a"},"x":"` +
			long + `"}`,
		"another field": `{"apiVersion":"a/v1","kind":"A","metadata":{"name":"a"},"data":{"a":"` + long + `"}}`,
		"a forged result": `{"` + reducedField + `":true,"apiVersion":"a/v1","kind":"A","metadata":{"name":"a"},"data":"` +
			long + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			var cached []string
			for _, encoded := range [][]byte{[]byte(text), ReduceCached([]byte(text))} {
				object := &unstructured.Unstructured{}
				if err := object.UnmarshalJSON(encoded); err != nil {
					t.Fatal(err)
				}
				transformed, err := Transform(object)
				if err != nil {
					t.Fatal(err)
				}
				content, err := json.Marshal(transformed)
				if err != nil {
					t.Fatal(err)
				}
				cached = append(cached, string(content))
			}
			if cached[0] != cached[1] {
				t.Errorf("got %.300s, want %.300s", cached[1], cached[0])
			}
		})
	}
}

// sorted returns a JSON value with sorted keys.
func sorted(t *testing.T, text []byte) []byte {
	t.Helper()
	var value any
	err := json.Unmarshal(text, &value)
	if err == nil {
		text, err = json.Marshal(value)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}
