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

// owned makes an object an owner's child.
func (h *harness) owned(owner dynamiccontroller.ObjectIdentifiers) func(*unstructured.Unstructured) {
	h.Helper()
	object, err := h.client.Resource(owner.GVR).Namespace(owner.Namespace()).Get(h.Context(), owner.Name(), metav1.GetOptions{})
	h.noError(err)
	return func(child *unstructured.Unstructured) {
		child.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), Name: object.GetName(), UID: object.GetUID(), Controller: ptr.To(true),
		}})
	}
}

// openWatches counts a type's open watches.
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
	h.eventually(fmt.Sprintf("%d watches", want), func() error {
		if n := w.openWatches(gvr); n != want {
			return fmt.Errorf("%d are open", n)
		}
		return nil
	})
}

// A type that is served, owned by two and watched by a third has one watch, until the last of them is stopped.
func TestS6_WhoNeedsTheSameTypeSharesItsWatch(t *testing.T) {
	h := newHarness(t)
	child, one, two, three := h.define(h.newType()), h.define(h.newType()), h.define(h.newType()), h.define(h.newType())
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
		h.serve(c, gvr, calls[gvr].handle, append(opts, dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata))...)
		h.synced(c, gvr)
	}
	h.apply(one, "a", 0)
	h.apply(two, "b", 0)
	serve(child)
	h.eventuallyWatches(w, child, 1)
	serve(one, dynamiccontroller.Owns(child))
	serve(two, dynamiccontroller.Owns(child))
	serve(three, dynamiccontroller.Watches(child, func(context.Context, dynamiccontroller.Object) []string { return []string{h.namespace + "/mapped"} }))
	calls[one].waitFor(h.id(one, "a"), 1)
	calls[two].waitFor(h.id(two, "b"), 1)

	h.apply(child, "c", 0, h.owned(h.id(one, "a")))
	calls[child].waitFor(h.id(child, "c"), 1)
	calls[one].waitFor(h.id(one, "a"), 2)
	calls[three].waitFor(h.id(three, "mapped"), 1)
	h.apply(child, "c", 1, h.owned(h.id(two, "b"))) // moves
	calls[one].waitFor(h.id(one, "a"), 3)
	calls[two].waitFor(h.id(two, "b"), 2)
	lister := must(c.SecondaryLister(two, dynamiccontroller.Owns(child).Key()))
	owner := must(h.client.Resource(two).Namespace(h.namespace).Get(t.Context(), "b", metav1.GetOptions{}))
	if owned := must(lister.OwnedBy(owner.GetUID())); len(owned) != 1 || owned[0].(*metav1.PartialObjectMetadata).Name != "c" {
		t.Errorf("owned: %v", owned)
	}
	if n := opened.Load(); n != 1 || w.openWatches(child) != 1 {
		t.Errorf("%d watches were opened, %d are open", n, w.openWatches(child))
	}

	for i, gvr := range []gvrType{child, one, two, three} {
		if n := w.openWatches(child); n != 1 {
			t.Errorf("%d watches before stop %d", n, i)
		}
		h.stopServing(c, gvr)
	}
	h.eventuallyWatches(w, child, 0)
	if n := opened.Load(); n != 1 {
		t.Errorf("%d watches were opened in all", n)
	}
}

// Raising what a watch keeps and lowering it again, while objects come, change and go, loses nothing and tells nothing
// twice; two watches at the most are open.
func TestS6_RaisingUnderChurnLosesNothing(t *testing.T) {
	const objects, rounds = 10, 12
	h := newHarness(t)
	child, keys, full := h.define(h.newType()), h.define(h.newType()), h.define(h.newType())
	w := &wire{}
	c := w.through(h).controller(dynamiccontroller.Config{Workers: 4})
	h.run(c)

	// What the predicate of one that stays is told must be a history without gaps, repetitions and steps back.
	var mu sync.Mutex
	known := map[string]string{}
	listed := false
	h.serve(c, keys, newRecorder(t, nil).handle, dynamiccontroller.Owns(child, dynamiccontroller.WithPredicate(func(_ context.Context, old, now dynamiccontroller.Object) bool {
		mu.Lock()
		defer mu.Unlock()
		name, before, after := "", "", ""
		for into, obj := range map[*string]dynamiccontroller.Object{&before: old, &after: now} {
			if obj != nil {
				name, *into = obj.GetName(), obj.GetResourceVersion()
			}
		}
		if listed && known[name] != before {
			t.Errorf("%s changes from version %q, and was %q", name, before, known[name])
		}
		if n := func(s string) int { n, _ := strconv.Atoi(s); return n }; after != "" && n(after) <= n(before) {
			t.Errorf("%s goes from version %q to %q", name, before, after)
		}
		if after == "" {
			delete(known, name)
		} else {
			known[name] = after
		}
		return true
	})))
	h.eventually("the children have synced", func() error {
		if !c.Status()[0].Secondaries[0].Synced {
			return errors.New("not yet")
		}
		return nil
	})
	mu.Lock()
	listed = true
	mu.Unlock()

	over := make(chan struct{})
	var churn sync.WaitGroup
	churn.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-over:
				return
			default:
			}
			name := "c" + strconv.Itoa(i%objects)
			if i%5 == 4 {
				_ = h.client.Resource(child).Namespace(h.namespace).Delete(t.Context(), name, metav1.DeleteOptions{})
			} else {
				h.apply(child, name, i)
			}
		}
	})
	most := 0
	for range rounds {
		h.serve(c, full, newRecorder(t, nil).handle, dynamiccontroller.Owns(child, dynamiccontroller.WithCache(dynamiccontroller.CacheFull)))
		lister := must(c.SecondaryLister(full, dynamiccontroller.Owns(child, dynamiccontroller.WithCache(dynamiccontroller.CacheFull)).Key()))
		h.eventually("the children are kept whole", func() error {
			most = max(most, w.openWatches(child))
			list, err := lister.List(labels.Everything())
			for _, object := range list {
				if _, whole := object.(*unstructured.Unstructured); !whole {
					t.Errorf("a %T", object)
				}
			}
			return err
		})
		h.stopServing(c, full)
		h.eventuallyWatches(w, child, 1)
	}
	close(over)
	churn.Wait()
	if most > 2 {
		t.Errorf("%d watches were open at once", most)
	}
	h.eventually("what was told is what there is", func() error {
		list, err := h.client.Resource(child).Namespace(h.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if len(list.Items) != len(known) {
			return fmt.Errorf("%d objects, %d known", len(list.Items), len(known))
		}
		for _, item := range list.Items {
			if known[item.GetName()] != item.GetResourceVersion() {
				return fmt.Errorf("%s is %s, known is %q", item.GetName(), item.GetResourceVersion(), known[item.GetName()])
			}
		}
		return nil
	})
}

// A type of children that does not exist yet holds nobody up, is seen, and is watched when it is there; also when it is
// needed by a handler that learns of it while it runs.
func TestS6_ChildrenOfATypeToCome(t *testing.T) {
	h := newHarness(t)
	parent, child := h.define(h.newType()), h.newType()
	m, _ := h.mapper()
	c := h.controller(dynamiccontroller.Config{}, dynamiccontroller.WithTypeEvents(typeEvents(m)))
	h.run(c)
	h.apply(parent, "a", 0)
	h.apply(parent, "b", 0)
	calls := newRecorder(t, nil)
	h.serve(c, parent, calls.handle, dynamiccontroller.Owns(child))
	calls.waitForTotal(2)
	h.eventually("it is known to be missing", func() error {
		if s := c.Status()[0].Secondaries; len(s) != 1 || s[0].State != dynamiccontroller.TypeNotFound {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	h.define(child)
	established := time.Now()
	h.apply(child, "c", 0, h.owned(h.id(parent, "a")))
	calls.waitFor(h.id(parent, "a"), 2)
	t.Logf("established -> owner reconciled: %s", time.Since(established))
	if n := calls.count(h.id(parent, "b")); n != 1 {
		t.Errorf("%d calls for the other parent", n)
	}
	h.undefine(child) // and c goes with it
	calls.waitFor(h.id(parent, "a"), 3)
	h.stopServing(c, parent)
}
