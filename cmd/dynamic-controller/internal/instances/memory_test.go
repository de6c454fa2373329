package instances

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/test/platformtest"
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
	r, _, server := newTestReconcilers(t, func() {})
	r.newest.memory = memory.NewBudget(256<<10, 1)
	deleteFlowers(t, server)
	handler := r.withinBudget(func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
		return memory.FromContext(ctx).Grow(1 << 20)
	})
	_ = handler(t.Context(), flowers) // waits to report the deletion
	if left := storedFlowers(t, server).GetFinalizers(); len(left) > 0 {
		t.Errorf("the finalizers %q are left", left)
	}
}

func deleteFlowers(t *testing.T, server *platformtest.Server) {
	t.Helper()
	self := newFlowers(t, server)
	deleted := metav1.NewTime(time.Now().Add(-time.Minute))
	self.SetDeletionTimestamp(&deleted)
	self.SetFinalizers([]string{ChildrenFinalizer})
	if err := server.Tracker().Update(websites, self, flowers.Namespace()); err != nil {
		t.Fatal(err)
	}
}

// The metadata of the children can need too much memory as well.
func TestMemory_InstanceWhoseChildrenCannotFitIsReported(t *testing.T) {
	r, _, server := newTestReconcilers(t, func() {})
	engine := r.newest.engine.(*platformtest.Engine)
	r.newest.memory = memory.NewBudget(256<<10, 1)
	deleteFlowers(t, server)
	self := storedFlowers(t, server)
	self.SetAnnotations(map[string]string{inventoryAnnotation: "ConfigMap=v1/configmaps:1"})
	if err := server.Tracker().Update(websites, self, flowers.Namespace()); err != nil {
		t.Fatal(err)
	}
	for n := range 100 {
		child := &unstructured.Unstructured{}
		child.SetAPIVersion("v1")
		child.SetKind("ConfigMap")
		child.SetNamespace(self.GetNamespace())
		child.SetName(fmt.Sprint("child-", n))
		child.SetLabels(map[string]string{parentLabel: string(self.GetUID())})
		child.SetAnnotations(map[string]string{"long": strings.Repeat("x", 10_000)})
		child.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(self, self.GroupVersionKind())})
		if err := engine.Secondary.Add(child); err != nil {
			t.Fatal(err)
		}
	}
	handler := r.withinBudget(handlers.Object(handlers.Live(server), r.reconcile, r.gone))
	if delay, is := dynamiccontroller.RequeueDelay(handler(t.Context(), flowers)); !is || delay != cleanupInterval {
		t.Errorf("got a requeue: %t, after %s", is, delay)
	}
	now := storedFlowers(t, server)
	ready := ConditionOf(now, conditionReady)
	if ready == nil || ready.Reason != reasonMemory || !strings.Contains(ready.Message, "the number of its children") {
		t.Errorf("got %+v", ready)
	}
	if len(now.GetFinalizers()) != 1 {
		t.Errorf("the finalizers are %q", now.GetFinalizers())
	}
}

// fill makes others hold the shared part of a budget, and returns a function that releases it.
func fill(t *testing.T, budget *memory.Budget) (release func()) {
	t.Helper()
	var others []*memory.Reservation
	for n := range 30 { // each owner gets a part of what is left
		for {
			_, other := budget.Reserve(t.Context(), memory.Owner{Type: fmt.Sprint(n)})
			if other.Claim(96<<10, 96<<10) != nil {
				break
			}
			others = append(others, other)
		}
	}
	return func() {
		for _, other := range others {
			other.Release()
		}
	}
}

func TestMemory_BusyInstanceIsRequeuedAndClaimsItsMemory(t *testing.T) {
	budget := memory.NewBudget(4<<20, 16)
	r, _, server := newTestReconcilers(t, func() {})
	r.newest.memory = budget
	newFlowers(t, server)
	var calls int
	handler := r.withinBudget(func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
		calls++
		return memory.FromContext(ctx).Grow(1 << 20)
	})
	release := fill(t, budget)
	for range 3 {
		delay, is := dynamiccontroller.RequeueDelay(handler(t.Context(), flowers))
		if !is || delay < busyInterval || delay > 2*busyInterval {
			t.Fatalf("got a requeue: %t, after %s", is, delay)
		}
	}
	if calls != 1 {
		t.Errorf("the handler was called %d times, although its memory was not available", calls)
	}
	release()
	if err := handler(t.Context(), flowers); err != nil || calls != 2 {
		t.Errorf("after %d calls: %v", calls, err)
	}
	if r.needs.of(flowers) != 0 {
		t.Error("a successful reconcile still needs memory")
	}
}

func TestMemory_LongWaitIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := memory.NewBudget(4<<20, 16)
		r, _, server := newTestReconcilers(t, func() {})
		r.newest.memory = budget
		newFlowers(t, server)
		handler := r.withinBudget(func(ctx context.Context, _ dynamiccontroller.ObjectIdentifiers) error {
			return memory.FromContext(ctx).Grow(1 << 20)
		})
		fill(t, budget)
		for began := time.Now(); time.Since(began) < 3*reportBusyAfter; {
			delay, is := dynamiccontroller.RequeueDelay(handler(t.Context(), flowers))
			if !is {
				t.Fatal("not requeued")
			}
			ready := ConditionOf(storedFlowers(t, server), conditionReady)
			isReported := ready != nil && ready.Reason == reasonWaitingForMemory
			if isReported != (time.Since(began) > reportBusyAfter) {
				t.Fatalf("after %s, got %v", time.Since(began), ready)
			}
			time.Sleep(delay)
		}
		if writes := server.Took(); len(writes) != 1 {
			t.Errorf("wrote %q", writes)
		}
	})
}

func TestReduceItem(t *testing.T) {
	metadata := func(fields string) string { return `{"metadata":{"name":"a","namespace":"n"` + fields + `}}` }
	long := strings.Repeat("x", 2*maxMarkBytes+1)
	const marks = `"annotations":{"platform.example.com/parent":"p","platform.example.com/self":"n/a"},` +
		`"labels":{"platform.example.com/parent":"u"}`
	for name, test := range map[string]struct{ item, want string }{
		"content": {`{"kind":"K","metadata":{"name":"a","uid":"u","resourceVersion":"1","generation":2},"spec":{"a":1}}`,
			`{"metadata":{"name":"a","uid":"u","resourceVersion":"1"}}`},
		"marks": {metadata("," + marks), metadata("," + marks)},
		"other entries": {metadata(`,"labels":{"a":"b"},"annotations":{"a":"b","platform.example.com/PARENT":"x"}`),
			metadata("")},
		"long values": {metadata(`,"labels":{"platform.example.com/parent":"` + long + `"},"annotations":{` +
			`"platform.example.com/parent":"` + long + `"}`), metadata("")},
		"a deletion": {metadata(`,"deletionTimestamp":"2026-01-01T00:00:00Z","deletionGracePeriodSeconds":-1`),
			metadata(`,"deletionTimestamp":"2026-01-01T00:00:00Z","deletionGracePeriodSeconds":-1`)},
		"finalizers": {metadata(`,"finalizers":["a","` + long + `","b"` + strings.Repeat(`,"c"`, 20) + `]`),
			metadata(`,"finalizers":["a","b"` + strings.Repeat(`,"c"`, 8) + `]`)},
		"owners": {metadata(`,"ownerReferences":[{"uid":"1"},{"uid":"2","controller":true},{"uid":"3","controller":false}]`),
			metadata(`,"ownerReferences":[{"apiVersion":"","kind":"","name":"","uid":"2","controller":true}]`)},
		"a long controller": {metadata(`,"ownerReferences":[{"name":"` + long + `","uid":"1","controller":true}]`),
			metadata(`,"ownerReferences":[{"apiVersion":"","kind":"","name":"","uid":"","controller":true}]`)},
		"a long retained value": {metadata(`,"annotations":{"platform.example.com/retained-by":"` + long + `"}`),
			metadata(`,"annotations":{"platform.example.com/retained-by":"` + long[:maxMarkBytes] + `"}`)},
		"null":          {metadata(`,"labels":null,"finalizers":null,"ownerReferences":null`), metadata("")},
		"not an object": {`[]`, `[]`},
		"not valid":     {metadata(`,"finalizers":[1]`), metadata(`,"finalizers":[1]`)},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := sorted(t, ReduceItem([]byte(test.item))), sorted(t, []byte(test.want))
			if string(got) != string(want) {
				t.Errorf("got %.300s, want %.300s", got, want)
			}
		})
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
		"large labels":     {object(`,"labels":{"a":"`+long+`"}`, `,"spec":1`), object("", "")},
		"large finalizers": {object(`,"finalizers":["`+long+`"]`, `,"spec":1`), object(`,"finalizers":["`+long+`"]`, "")},
		"a list":           {`{"items":["` + long + `"]}`, `{"items":["` + long + `"]}`},
		"not an object":    {"[" + long + "]", "[" + long + "]"},
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
