package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// owned returns a function that makes an object a child of the owner.
func (h *harness) owned(owner dynamiccontroller.ObjectIdentifiers) func(*unstructured.Unstructured) {
	h.Helper()
	object, err := h.client.Resource(owner.GVR).Namespace(owner.Namespace()).Get(h.Context(), owner.Name(),
		metav1.GetOptions{})
	h.noError(err)
	return func(child *unstructured.Unstructured) {
		child.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), Name: object.GetName(), UID: object.GetUID(),
			Controller: ptr.To(true),
		}})
	}
}

// openWatches returns the number of open watches of a type.
func (w *wire) openWatches(gvr gvrType) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, path := range w.streams {
		if strings.HasPrefix(path, "/apis/"+gvr.Group+"/") {
			n++
		}
	}
	return n
}

func (h *harness) eventuallyWatches(w *wire, gvr gvrType, want int) {
	h.Helper()
	h.eventually(fmt.Sprintf("%d watches are open", want), func() error {
		if n := w.openWatches(gvr); n != want {
			return fmt.Errorf("got %d open watches", n)
		}
		return nil
	})
}

// A type that is served, owned by two other types and watched by a third type must have a single watch until the last
// subscription ends.
func TestS6_SubscriptionsShareOneWatch(t *testing.T) {
	h := newHarness(t)
	child, one := h.widgets(), h.widgets()
	two, three := h.widgets(), h.widgets()
	w := &wire{}
	c := w.through(h).controller(dynamiccontroller.Config{Workers: 4})
	h.run(c)
	var opened atomic.Int64
	w.set(func(r *http.Request, send send) (*http.Response, error) {
		answer, err := send(r)
		if isFor(r, child) && isWatch(r) && err == nil && answer.StatusCode == http.StatusOK {
			t.Logf("watch %d: %s", opened.Add(1), r.URL.RawQuery)
		}
		return answer, err
	})
	calls := map[gvrType]*recorder{}
	serve := func(gvr gvrType, opts ...dynamiccontroller.ServeOption) {
		calls[gvr] = newRecorder(t, nil)
		opts = append(opts, dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata))
		h.serve(c, gvr, calls[gvr].handle, opts...)
		h.synced(c, gvr)
	}
	h.apply(one, "a", 0)
	h.apply(two, "b", 0)
	serve(child)
	h.eventuallyWatches(w, child, 1)
	serve(one, dynamiccontroller.Owns(child))
	serve(two, dynamiccontroller.Owns(child))
	serve(three, dynamiccontroller.Watches(child, func(context.Context, dynamiccontroller.Object) []string {
		return []string{h.namespace + "/mapped"}
	}))
	calls[one].waitFor(h.id(one, "a"), 1)
	calls[two].waitFor(h.id(two, "b"), 1)

	h.apply(child, "c", 0, h.owned(h.id(one, "a")))
	calls[child].waitFor(h.id(child, "c"), 1)
	calls[one].waitFor(h.id(one, "a"), 2)
	calls[three].waitFor(h.id(three, "mapped"), 1)
	h.apply(child, "c", 1, h.owned(h.id(two, "b"))) // This changes the owner.
	calls[one].waitFor(h.id(one, "a"), 3)
	calls[two].waitFor(h.id(two, "b"), 2)
	lister := must(c.SecondaryLister(two, dynamiccontroller.Owns(child).Key()))
	owner := must(h.client.Resource(two).Namespace(h.namespace).Get(t.Context(), "b", metav1.GetOptions{}))
	owned := must(lister.OwnedBy(owner.GetUID()))
	if len(owned) != 1 || owned[0].GetName() != "c" {
		t.Errorf("got owned objects %v, want c", owned)
	}
	if n := opened.Load(); n != 1 || w.openWatches(child) != 1 {
		t.Errorf("%d watches were opened and %d are open, want 1 and 1", n, w.openWatches(child))
	}

	for i, gvr := range []gvrType{child, one, two, three} {
		if n := w.openWatches(child); n != 1 {
			t.Errorf("got %d open watches before stop %d, want 1", n, i)
		}
		h.stopServing(c, gvr)
	}
	h.eventuallyWatches(w, child, 0)
	if n := opened.Load(); n != 1 {
		t.Errorf("%d watches were opened in total, want 1", n)
	}
}

// changeLog checks the changes that are passed to its predicate. For each object, these changes must form a history
// without gaps or repetitions.
type changeLog struct {
	t *testing.T

	mu       sync.Mutex // Guards the fields below.
	versions map[string]string
	synced   bool // True after the initial list, whose changes have no predecessors.
}

func (l *changeLog) predicate(_ context.Context, old, now dynamiccontroller.Object) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	name, before, after := "", "", ""
	for into, obj := range map[*string]dynamiccontroller.Object{&before: old, &after: now} {
		if obj != nil {
			name, *into = obj.GetName(), obj.GetResourceVersion()
		}
	}
	if l.synced && l.versions[name] != before {
		l.t.Errorf("change to %s from version %q, want %q", name, before, l.versions[name])
	}
	number := func(s string) int { n, _ := strconv.Atoi(s); return n }
	if after != "" && number(after) <= number(before) {
		l.t.Errorf("change to %s from version %q to %q", name, before, after)
	}
	if after == "" {
		delete(l.versions, name)
	} else {
		l.versions[name] = after
	}
	return true
}

func (l *changeLog) setSynced() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.synced = true
}

// compare returns an error if the last known versions differ from those of the given objects.
func (l *changeLog) compare(list *unstructured.UnstructuredList) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(list.Items) != len(l.versions) {
		return fmt.Errorf("got %d objects, want %d", len(l.versions), len(list.Items))
	}
	for _, item := range list.Items {
		if got, want := l.versions[item.GetName()], item.GetResourceVersion(); got != want {
			return fmt.Errorf("got version %q for %s, want %q", got, item.GetName(), want)
		}
	}
	return nil
}

// churn creates, changes and deletes objects until stop is called.
func (h *harness) churn(gvr gvrType, objects int) (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			name := "c" + strconv.Itoa(i%objects)
			if i%5 == 4 {
				_ = h.client.Resource(gvr).Namespace(h.namespace).Delete(h.Context(), name, metav1.DeleteOptions{})
			} else {
				h.apply(gvr, name, i)
			}
		}
	})
	return func() {
		close(done)
		running.Wait()
	}
}

// A watch stores only keys for its first subscription. While objects are created, changed and deleted, the test
// repeatedly adds and removes a second subscription, which needs whole objects. The first subscription must receive
// each change exactly once, and at most two watches may be open at the same time.
func TestS6_ProjectionChangesLoseNoEvents(t *testing.T) {
	const objects, rounds = 10, 12
	h := newHarness(t)
	child, keys, full := h.widgets(), h.widgets(), h.widgets()
	w := &wire{}
	c := w.through(h).controller(dynamiccontroller.Config{Workers: 4})
	h.run(c)

	changes := &changeLog{t: t, versions: map[string]string{}}
	h.serve(c, keys, newRecorder(t, nil).handle,
		dynamiccontroller.Owns(child, dynamiccontroller.WithPredicate(changes.predicate)))
	h.eventually("the children have synced", func() error {
		if !c.Status()[0].Secondaries[0].Synced {
			return errors.New("not synced")
		}
		return nil
	})
	changes.setSynced()

	stopChurn := h.churn(child, objects)
	most := 0
	ownsFull := dynamiccontroller.Owns(child, dynamiccontroller.WithCache(dynamiccontroller.CacheFull))
	for range rounds {
		h.serve(c, full, newRecorder(t, nil).handle, ownsFull)
		lister := must(c.SecondaryLister(full, ownsFull.Key()))
		h.eventually("whole objects are cached", func() error {
			most = max(most, w.openWatches(child))
			list, err := lister.List(labels.Everything())
			for _, object := range list {
				if _, whole := object.(*unstructured.Unstructured); !whole {
					t.Errorf("got a %T in the cache", object)
				}
			}
			return err
		})
		h.stopServing(c, full)
		h.eventuallyWatches(w, child, 1)
	}
	stopChurn()
	if most > 2 {
		t.Errorf("got %d concurrent watches, want at most 2", most)
	}
	h.eventually("the last changes are delivered", func() error {
		list, err := h.client.Resource(child).Namespace(h.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		return changes.compare(list)
	})
}

// A missing child type must not delay the type that owns it. The status reports the missing type, which is watched as
// soon as it is defined.
func TestS6_OwnedTypeIsDefinedLater(t *testing.T) {
	h := newHarness(t)
	parent, child := h.widgets(), h.newType()
	m, _ := h.mapper()
	c := h.controller(dynamiccontroller.Config{}, dynamiccontroller.WithTypeEvents(m.TypeEvents))
	h.run(c)
	h.apply(parent, "a", 0)
	h.apply(parent, "b", 0)
	calls := newRecorder(t, nil)
	h.serve(c, parent, calls.handle, dynamiccontroller.Owns(child))
	calls.waitForTotal(2)
	h.eventually("the status reports the missing type", func() error {
		if s := c.Status()[0].Secondaries; len(s) != 1 || s[0].State != dynamiccontroller.TypeNotFound {
			return fmt.Errorf("got secondaries %+v", s)
		}
		return nil
	})
	h.define(child)
	established := time.Now()
	h.apply(child, "c", 0, h.owned(h.id(parent, "a")))
	calls.waitFor(h.id(parent, "a"), 2)
	t.Logf("the owner was reconciled %s after the child type was established", time.Since(established))
	if n := calls.count(h.id(parent, "b")); n != 1 {
		t.Errorf("got %d calls for the other parent, want 1", n)
	}
	h.undefine(child) // This also deletes the child.
	calls.waitFor(h.id(parent, "a"), 3)
	h.stopServing(c, parent)
}
