package children

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/handlers/internal/fakeserver"
)

// slowClient is a client whose applies take a second. It counts those that are concurrent.
type slowClient struct {
	dynamic.Interface
	panics bool // whether each apply panics

	mu        sync.Mutex // guards the fields below
	now, most int
}

func (c *slowClient) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += n
	c.most = max(c.most, c.now)
}

func (c *slowClient) Resource(gvr schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return slowResource{c.Interface.Resource(gvr), c}
}

type slowResource struct {
	dynamic.NamespaceableResourceInterface
	client *slowClient
}

func (r slowResource) Namespace(namespace string) dynamic.ResourceInterface {
	return slowObjects{r.NamespaceableResourceInterface.Namespace(namespace), r.client}
}

type slowObjects struct {
	dynamic.ResourceInterface
	client *slowClient
}

func (o slowObjects) Apply(
	ctx context.Context, name string, object *unstructured.Unstructured, options metav1.ApplyOptions, sub ...string,
) (*unstructured.Unstructured, error) {
	o.client.add(1)
	defer o.client.add(-1)
	if o.client.panics {
		panic("in apply")
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Second):
	}
	return o.ResourceInterface.Apply(ctx, name, object, options, sub...)
}

// stageOf returns config maps with a value of the given size.
func stageOf(children, size int) (stage []*unstructured.Unstructured) {
	for i := range children {
		stage = append(stage, newConfigMap(fmt.Sprintf("child-%d", i), strings.Repeat("x", size)))
	}
	return stage
}

// The children in a stage take the time of a few children, and their size limits the concurrency, too.
func TestReconcile_AppliesAStageConcurrently(t *testing.T) {
	for name, test := range map[string]struct {
		limit, size, children, want int
	}{
		"the default":            {0, 1, 40, DefaultMaxConcurrentApplies},
		"one after another":      {1, 1, 3, 1},
		"fewer children":         {8, 1, 3, 3},
		"large children":         {8, maxConcurrentBytes / 3, 6, 2},
		"children over the size": {8, maxConcurrentBytes + 1, 3, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := &slowClient{Interface: newFakeServer(newWidget())}
				reconciler, err := New(Config{
					Client: client, Cache: fakeserver.Cache{}, MaxConcurrentApplies: test.limit,
					Mapper: fakeserver.NewMapper(), Name: "platform.example.com", Kinds: []Kind{configMapKind},
				})
				if err != nil {
					t.Fatal(err)
				}
				stage := stageOf(test.children, test.size)
				start := time.Now()
				result, err := reconciler.Reconcile(t.Context(), first, newWidget(), oneStage(stage...))
				if err != nil {
					t.Fatal(err)
				}
				if client.most != test.want {
					t.Errorf("%d requests were concurrent, want %d", client.most, test.want)
				}
				rounds := time.Duration((test.children + test.want - 1) / test.want)
				if took := time.Since(start); took > rounds*time.Second {
					t.Errorf("took %s, want %s", took, rounds*time.Second)
				}
				failUnlessCreated(t, result, stage)
			})
		})
	}
}

// failUnlessCreated fails the test unless the result contains all children, in order.
func failUnlessCreated(t *testing.T, result Result, stage []*unstructured.Unstructured) {
	t.Helper()
	for i, child := range result.Children {
		if child.Outcome != OutcomeCreated || child.Name() != stage[i].GetName() || child.Object == nil {
			t.Errorf("child %d: got %+v", i, child)
		}
	}
}

// The caller recovers a panic of a client like one that occurs without concurrency.
func TestReconcile_RaisesAPanicAgain(t *testing.T) {
	client := &slowClient{Interface: newFakeServer(newWidget()), panics: true}
	reconciler := newReconciler(t, Config{Client: client, Cache: fakeserver.Cache{}, MaxConcurrentApplies: 2})
	defer func() {
		if value := recover(); value == nil || !strings.Contains(fmt.Sprint(value), "in apply") ||
			!strings.Contains(fmt.Sprint(value), "slowObjects.Apply") {
			t.Errorf("recovered %v", value)
		}
	}()
	_, err := reconciler.Reconcile(t.Context(), first, newWidget(), oneStage(stageOf(3, 1)...))
	t.Errorf("no panic, and the error %v", err)
}

// If the context ends, the children that have not been applied fail.
func TestReconcile_ContextEndsWhileAStageIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &slowClient{Interface: newFakeServer(newWidget())}
		reconciler := newReconciler(t, Config{Client: client, Cache: fakeserver.Cache{}, MaxConcurrentApplies: 2})
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(1500*time.Millisecond, func() { cancel(stopped) })
		result, err := reconciler.Reconcile(ctx, first, newWidget(), oneStage(stageOf(7, maxConcurrentBytes/2)...))
		if err == nil {
			t.Error("no error")
		}
		outcomes := map[Outcome]int{}
		for _, child := range result.Children {
			outcomes[child.Outcome]++
		}
		if created, failed := outcomes[OutcomeCreated], outcomes[OutcomeFailed]; created == 0 || failed == 0 ||
			created+failed != 7 {
			t.Errorf("the outcomes are %v", outcomes)
		}
	})
}

// Objects in a new namespace can only be created once the namespace exists.
func TestReconcile_AppliesNamespacesFirst(t *testing.T) {
	server := newFakeServer(newWidget())
	kinds := []Kind{{GroupKind: configMapKind.GroupKind, CrossNamespace: true}, {GroupKind: namespaceKind.GroupKind,
		CrossNamespace: true}}
	reconciler := newReconciler(t, Config{Client: server, Kinds: kinds})
	_, err := reconciler.Reconcile(t.Context(), first, newWidget(),
		oneStage(newRemoteConfigMap("a"), newConfigMap("b", "x"), newObject("v1", "Namespace", "", "other")))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"apply namespaces other", "apply configmaps a", "apply configmaps b"}
	if writes := server.TakeWrites(); !slices.Equal(writes[len(writes)-3:], want) {
		t.Errorf("wrote %q, want %q at the end", writes, want)
	}
}

// Children that need different requests do not affect each other. The race detector checks the access to shared state.
func TestReconcile_AppliesDifferentChildrenConcurrently(t *testing.T) {
	const each = 8
	objects := []*unstructured.Unstructured{newWidget()}
	add := func(prefix string, change func(*unstructured.Unstructured)) {
		for i := range each {
			object := newConfigMap(fmt.Sprintf("%s-%d", prefix, i), "theirs")
			object.SetNamespace("default")
			change(object)
			objects = append(objects, object)
		}
	}
	owned := func(object *unstructured.Unstructured) {
		object.SetOwnerReferences([]metav1.OwnerReference{
			*metav1.NewControllerRef(newWidget(), newWidget().GroupVersionKind()),
		})
		object.SetLabels(map[string]string{"platform.example.com/parent": "widget-uid"})
	}
	add("update", owned)
	add("adopt", func(*unstructured.Unstructured) {})
	add("conflict", func(*unstructured.Unstructured) {})
	add("deleting", func(object *unstructured.Unstructured) {
		owned(object)
		now := metav1.Now()
		object.SetDeletionTimestamp(&now)
		object.SetFinalizers([]string{"example.com/hold"})
	})
	reconciler := newReconciler(t, Config{Client: newFakeServer(objects...), MaxConcurrentApplies: 16})
	var stage []Child
	for i := range each {
		for _, prefix := range []string{"create", "update", "adopt", "conflict", "deleting"} {
			object := newConfigMap(fmt.Sprintf("%s-%d", prefix, i), "mine")
			stage = append(stage, Child{Object: object, Adopt: prefix == "adopt"})
		}
		stage = append(stage, Child{Object: newRemoteConfigMap(fmt.Sprintf("remote-%d", i))})
	}
	result, err := reconciler.Reconcile(t.Context(), first, newWidget(), Desired{Stages: [][]Child{stage}})
	if !errors.Is(err, ErrNotOwned) {
		t.Errorf("got %v", err)
	}
	want := map[string]Outcome{
		"create": OutcomeCreated, "remote": OutcomeCreated, "update": OutcomeApplied, "adopt": OutcomeApplied,
		"conflict": OutcomeConflict, "deleting": OutcomeWaiting,
	}
	for _, child := range result.Children {
		prefix, _, _ := strings.Cut(child.Name(), "-")
		if child.Outcome != want[prefix] {
			t.Errorf("%s: got %s: %s", child.NamespacedKey, child.Outcome, child.Message)
		}
	}
	if len(result.Pending) != each {
		t.Errorf("%d children are pending, want %d", len(result.Pending), each)
	}
}
