package integration

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers"
	"github.com/dynamic-controller/engine/handlers/children"
	"github.com/dynamic-controller/engine/test/apiproxy"
)

var dependentUpdates = flag.Int("dependent-updates", 100,
	"number of updates in TestHandlers_LaggingWatchesNeverTakeValuesBack")

// maxWatchLag is the longest delay of a watch event.
const maxWatchLag = 700 * time.Millisecond

// lagging returns a harness whose watches, except those of Leases, lag by a random time.
func (h *harness) lagging(longest time.Duration) *harness {
	own := *h
	random := apiproxy.DelayWatches(func(watch apiproxy.Call) time.Duration {
		if watch.Resource == "leases" {
			return 0
		}
		return rand.N(longest)
	})
	own.config = intercepted(h.config, func(r *http.Request, send send) (*http.Response, error) {
		return random(roundTripper(send)).RoundTrip(r)
	})
	return &own
}

// dependents reconciles parents with three children. The second one has a value of the first one, and the name of the
// third one depends on it.
type dependents struct {
	*setting
	reconciler *children.Reconciler
	cache      handlers.Reader
}

func (d *dependents) second(parent string, value int64) *unstructured.Unstructured {
	return newConfigMap(d.namespace, parent+"-second", fmt.Sprint(value))
}

func (d *dependents) named(parent string, value int64) *unstructured.Unstructured {
	return newConfigMap(d.namespace, fmt.Sprintf("%s-named-%d", parent, value), fmt.Sprint(value))
}

// reconcile computes the desired children from the first one until it does not change anymore.
func (d *dependents) reconcile(
	ctx context.Context, id dynamiccontroller.ObjectIdentifiers, parent *unstructured.Unstructured,
) error {
	n, _, _ := unstructured.NestedInt64(parent.Object, "spec", "n")
	first := newObject(d.gadgets, "Gadget", d.namespace, parent.GetName()+"-first", map[string]any{"n": n})
	latest := d.reconciler.Latest(id, d.cache)
	observed, err := latest.Get(ctx, d.gadgets, d.namespace, first.GetName())
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	for {
		desired := partial(first)
		var value int64
		if observed != nil {
			value, _, _ = unstructured.NestedInt64(observed.Object, "spec", "n")
			desired = oneStage(first, d.second(parent.GetName(), value), d.named(parent.GetName(), value))
		}
		result, err := d.reconciler.Reconcile(ctx, id, parent, desired)
		if err != nil || len(result.Children) == 0 {
			return err
		}
		before := observed
		if observed = result.Children[0].Object; observed == nil {
			return nil
		}
		now, _, _ := unstructured.NestedInt64(observed.Object, "spec", "n")
		if before != nil && now == value {
			return nil
		}
	}
}

// ledger checks the values of the children in the order in which they are written.
type ledger struct {
	mu       sync.Mutex // guards the fields below
	values   map[string]string
	created  map[string]bool
	problems []string
}

// record checks an event for a ConfigMap.
func (l *ledger) record(event watch.Event) {
	object, _ := event.Object.(*unstructured.Unstructured)
	if object == nil || !strings.HasPrefix(object.GetName(), "p-") {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	name := object.GetName()
	value, _, _ := unstructured.NestedString(object.Object, "data", "key")
	var now, before int
	_, _ = fmt.Sscan(value, &now)
	_, _ = fmt.Sscan(l.values[name], &before)
	parent, _, isNamed := strings.Cut(name, "-named-")
	switch {
	case event.Type == watch.Added && l.created[name]:
		l.problems = append(l.problems, fmt.Sprintf("%s was created again", name))
	case !isNamed && now < before:
		l.problems = append(l.problems, fmt.Sprintf("%s went from %d back to %d", name, before, now))
	case isNamed && event.Type == watch.Deleted && l.values[parent] == value:
		l.problems = append(l.problems, fmt.Sprintf("%s was deleted although it is the newest one", name))
	}
	if l.created[name] = true; isNamed && event.Type == watch.Added {
		_, _ = fmt.Sscan(l.values[parent], &before)
		if now < before {
			l.problems = append(l.problems, fmt.Sprintf("%s was created after %d", name, before))
		}
		l.values[parent] = value
	}
	l.values[name] = value
}

// follow records the events for the ConfigMaps in the namespace of the test until the test ends.
func (l *ledger) follow(h *harness) {
	h.Helper()
	events, err := h.in(configMaps, h.namespace).Watch(h.Context(), metav1.ListOptions{})
	h.noError(err)
	h.Cleanup(events.Stop)
	go func() {
		for event := range events.ResultChan() {
			l.record(event)
		}
	}()
}

// check reports the problems that were found.
func (l *ledger) check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.problems); n > 0 {
		t.Errorf("%d problems, for example:\n%s", n, strings.Join(l.problems[:min(n, 10)], "\n"))
	}
}

// update updates a parent many times. The last value is the number of updates.
func (d *dependents) update(parent string, updates int) {
	for n := range updates {
		d.merge(d.parents, d.namespace, parent, fmt.Sprintf(`{"spec":{"n":%d}}`, n+1))
		time.Sleep(rand.N(100 * time.Millisecond)) // so that the updates meet caches of any age
	}
}

// hasNamed returns an error if a parent does not have the child that is named after the value.
func (d *dependents) hasNamed(parent string, value int64) error {
	object, err := d.in(configMaps, d.namespace).Get(
		d.Context(), d.named(parent, value).GetName(), metav1.GetOptions{})
	if err == nil && object.GetDeletionTimestamp() != nil {
		err = fmt.Errorf("%s is being deleted", object.GetName())
	}
	return err
}

// hasTwoConfigMaps returns an error if a parent has more or fewer ConfigMaps than the second and the named child.
func (d *dependents) hasTwoConfigMaps(parent string) error {
	list, err := d.in(configMaps, d.namespace).List(d.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	left := 0
	for _, object := range list.Items {
		if strings.HasPrefix(object.GetName(), parent+"-") {
			left++
		}
	}
	if left != 2 {
		return fmt.Errorf("%d ConfigMaps", left)
	}
	return nil
}

// Children depend on the value of another child. The watches of the parents and of all children lag by a random time.
// Even then, no value goes back, and no child is deleted that is still desired.
func TestHandlers_LaggingWatchesNeverTakeValuesBack(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h.lagging(maxWatchLag))
	controller := s.controller(dynamiccontroller.Config{
		MinRetryDelay: 10 * time.Millisecond, MaxRetryDelay: 100 * time.Millisecond,
	})
	in, full := dynamiccontroller.WithNamespaces(s.namespace), dynamiccontroller.WithCache(dynamiccontroller.CacheFull)
	lister := func(gvr schema.GroupVersionResource) (dynamiccontroller.SecondaryLister, error) {
		return controller.SecondaryLister(s.parents, dynamiccontroller.Owns(gvr, in, full).Key())
	}
	reconciler := s.newReconciler(children.Config{
		Client: must(dynamic.NewForConfig(s.config)), Cache: children.Cached(lister),
	})
	d := &dependents{s, reconciler, handlers.Cached(lister)}
	s.run(controller)
	s.serve(controller, s.parents, handlers.Object(handlers.Cached(controller.Lister), d.reconcile, nil), in,
		dynamiccontroller.Owns(s.gadgets, in, full), dynamiccontroller.Owns(configMaps, in, full))

	l := &ledger{values: map[string]string{}, created: map[string]bool{}}
	l.follow(h)

	const parents = 5
	updates := max(*dependentUpdates/parents, 1)
	var names []string
	for i := range parents {
		names = append(names, fmt.Sprintf("p-%d", i))
		h.put(s.parents, newObject(s.parents, "Platform", h.namespace, names[i], map[string]any{"n": int64(0)}))
	}
	var updating sync.WaitGroup
	for _, name := range names {
		updating.Go(func() { d.update(name, updates) })
	}
	updating.Wait()
	for _, name := range names {
		h.eventually(name+" has the last value", func() error { return d.hasNamed(name, int64(updates)) })
		h.eventually(name+" has no other children", func() error { return d.hasTwoConfigMaps(name) })
	}
	l.check(t)
	t.Logf("%d updates of %d parents", updates, parents)
}
