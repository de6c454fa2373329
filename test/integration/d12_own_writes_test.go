package integration

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

var (
	ownWrites    = flag.Int("own-writes", 60, "number of edits in TestD12_HandlersReadWhatTheyHaveWritten")
	ownWritesLag = flag.Duration("own-writes-lag", maxWatchLag, "maximum lag of the watches in this test")
)

// replacer keeps one child with a generated name for each parent, and trusts its cache: if the cache shows no child, it
// creates one, and if the child has an old value, it deletes it. Each edit of the parent therefore leads to a deletion
// and a creation.
type replacer struct {
	*harness
	parents, children gvrType
	controller        *dynamiccontroller.DynamicController
	client            dynamic.Interface
	owned             dynamiccontroller.Watch
}

func (r *replacer) handle(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
	lister, err := r.controller.Lister(r.parents)
	if err != nil {
		return err
	}
	object, err := lister.ByNamespace(id.Namespace()).Get(id.Name())
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	parent := object.(*unstructured.Unstructured)
	secondaries, err := r.controller.SecondaryLister(r.parents, r.owned.Key())
	if err != nil {
		return err
	}
	owned, err := secondaries.OwnedBy(parent.GetUID())
	if err != nil {
		return err
	}
	children, value := r.client.Resource(r.children).Namespace(id.Namespace()), parent.GetAnnotations()[wanted]
	found := false
	for _, child := range owned {
		if child.GetLabels()[wanted] == value && !found {
			found = true
			continue
		}
		err := children.Delete(ctx, child.GetName(), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if found || len(owned) > 0 {
		return nil // the deletion leads to another call
	}
	child := &unstructured.Unstructured{}
	child.SetAPIVersion(r.children.GroupVersion().String())
	child.SetKind("Widget")
	child.SetGenerateName(id.Name() + "-")
	child.SetLabels(map[string]string{wanted: value, "parent": id.Name()})
	child.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: parent.GetAPIVersion(), Kind: parent.GetKind(), Name: parent.GetName(), UID: parent.GetUID(),
		Controller: ptr.To(true),
	}})
	_, err = children.Create(ctx, child, metav1.CreateOptions{})
	return err
}

// census counts the children that were created while their parent had another one. Its watch does not lag.
type census struct {
	mu         sync.Mutex // guards the fields below
	alive      map[string]int
	duplicates int
}

func (r *replacer) census() *census {
	c := &census{alive: map[string]int{}}
	w, err := r.harness.client.Resource(r.children).Namespace(r.namespace).Watch(r.Context(), metav1.ListOptions{})
	r.noError(err)
	r.Cleanup(w.Stop)
	go func() {
		for event := range w.ResultChan() {
			if child, ok := event.Object.(*unstructured.Unstructured); ok {
				c.observe(event.Type, child.GetLabels()["parent"])
			}
		}
	}()
	return c
}

func (c *census) observe(change watch.EventType, parent string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch change {
	case watch.Added:
		if c.alive[parent]++; c.alive[parent] > 1 {
			c.duplicates++
		}
	case watch.Deleted:
		c.alive[parent]--
	}
}

// edit edits parents and deletes children at random times, so that edits meet the handler in all states. It returns the
// last value of each parent.
func (r *replacer) edit(parents int) (last map[string]string) {
	last = map[string]string{}
	children := r.harness.client.Resource(r.children).Namespace(r.namespace)
	for i := range *ownWrites {
		name := fmt.Sprintf("p%d", i%parents)
		last[name] = fmt.Sprint(i)
		if i < parents {
			r.apply(r.parents, name, 0)
		}
		r.merge(r.parents, r.namespace, name, `{"metadata":{"annotations":{"wanted":"`+last[name]+`"}}}`)
		if i%7 == 6 {
			r.noError(children.DeleteCollection(r.Context(), metav1.DeleteOptions{},
				metav1.ListOptions{LabelSelector: "parent=" + name}))
		}
		time.Sleep(rand.N(time.Second / time.Duration(parents)))
	}
	return last
}

// compare returns an error unless each parent has one child with its last value.
func (r *replacer) compare(last map[string]string) error {
	list, err := r.harness.client.Resource(r.children).Namespace(r.namespace).List(r.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	var got []string
	for _, child := range list.Items {
		parent := child.GetLabels()["parent"]
		if child.GetLabels()[wanted] != last[parent] {
			return fmt.Errorf("%s has the value %s, want %s", parent, child.GetLabels()[wanted], last[parent])
		}
		got = append(got, parent)
	}
	if len(got) != len(last) {
		return fmt.Errorf("got the children of %s", strings.Join(got, ", "))
	}
	return nil
}

// All watches lag. Parents are edited, and children are deleted, before and while they are replaced. A handler without
// expectations creates no child twice. With the promise switched off, it does.
func TestD12_HandlersReadWhatTheyHaveWritten(t *testing.T) {
	parents := max(10, *ownWrites/50)
	for name, test := range map[string]struct {
		maxLag     time.Duration
		duplicates bool
	}{"with the promise": {0, false}, "without": {-1, true}} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			r := &replacer{harness: h, parents: h.widgets(), children: h.widgets()}
			lagging := h.lagging(*ownWritesLag)
			r.controller = lagging.controller(dynamiccontroller.Config{MaxWriteLag: test.maxLag})
			r.client = must(dynamic.NewForConfig(dynamiccontroller.RecordWrites(h.config)))
			r.owned = dynamiccontroller.Owns(r.children)
			h.serve(r.controller, r.parents, r.handle, r.owned)
			counted := r.census()
			h.run(r.controller)
			h.synced(r.controller, r.parents)
			last := r.edit(parents)
			h.eventually("each parent has the wanted child", func() error { return r.compare(last) })
			counted.mu.Lock()
			got := counted.duplicates
			counted.mu.Unlock()
			t.Logf("%d children were created although there was one", got)
			if (got > 0) != test.duplicates {
				t.Errorf("%d children were created although there was one, want any: %t", got, test.duplicates)
			}
		})
	}
}
