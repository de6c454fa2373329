package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/handlers/children"
	"github.com/dynamic-controller/engine/internal/shards"
)

// typeIn defines a type that belongs to one of two shards.
func (h *harness) typeIn(shard int) gvrType {
	h.Helper()
	for {
		if gvr := h.newType(); shards.Of(gvr.GroupResource(), 2) == shard {
			return h.define(gvr)
		}
	}
}

// childrenProcess is a process whose parents each have config maps as children.
type childrenProcess struct {
	*dynamiccontroller.DynamicController
	h         *harness
	parents   []gvrType
	watch     dynamiccontroller.Watch
	calls     *recorder
	lists     atomic.Int64 // of config maps
	longest   atomic.Int64 // the length of the longest request URI
	perParent int
}

// newChildrenProcess returns a process that serves the types of parents. If labels is false, it behaves as one of an
// earlier release: it neither labels children nor narrows watches.
func (h *harness) newChildrenProcess(
	mapper meta.RESTMapper, parents []gvrType, perParent int, labelled bool,
) *childrenProcess {
	h.Helper()
	p := &childrenProcess{h: h, parents: parents, perParent: perParent}
	wire := &wire{}
	wire.set(func(r *http.Request, send send) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/configmaps") && r.Method == http.MethodGet && !isWatch(r) {
			p.lists.Add(1)
		}
		p.longest.Store(max(p.longest.Load(), int64(len(r.URL.RequestURI()))))
		return send(r)
	})
	wired := wire.through(h)
	p.DynamicController = wired.controller(dynamiccontroller.Config{ResyncPeriod: -1})
	ofAnyParent := must(labels.Parse(platformName + "/parent"))
	options := []dynamiccontroller.OwnsOption{
		dynamiccontroller.WithCache(dynamiccontroller.CacheFull), dynamiccontroller.WithManagedFields(),
		dynamiccontroller.WithNamespaces(h.namespace), dynamiccontroller.WithLabelSelector(ofAnyParent),
	}
	if labelled {
		options = append(options, dynamiccontroller.WithBucketLabel(children.BucketLabel(platformName)))
	}
	p.watch = dynamiccontroller.Owns(configMaps, options...)
	p.calls = newRecorder(h.T, p.reconciler(children.Config{
		Client: h.client, Mapper: mapper, Name: platformName, LabelBuckets: labelled,
		Kinds: []children.Kind{{GroupKind: schema.GroupKind{Kind: "ConfigMap"}}},
	}))
	for _, gvr := range parents {
		h.serve(p.DynamicController, gvr, p.calls.handle, p.watch)
	}
	return p
}

// reconciler returns a handler that reconciles the children of the parents.
func (p *childrenProcess) reconciler(config children.Config) dynamiccontroller.Handler {
	reconcilers := map[gvrType]*children.Reconciler{}
	for _, gvr := range p.parents {
		ofType := config
		ofType.Cache = children.Cached(func(gvrType) (dynamiccontroller.Lister, error) {
			return p.SecondaryLister(gvr, p.watch.Key())
		})
		reconcilers[gvr] = must(children.New(ofType))
	}
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		lister, err := p.Lister(id.GVR)
		if err != nil {
			return err
		}
		object, err := lister.Get(id.NamespacedKey)
		if err != nil {
			return err
		}
		var desired []*unstructured.Unstructured
		for i := range p.perParent {
			desired = append(desired, newConfigMap("", fmt.Sprintf("%s-%d", id.Name(), i), "desired"))
		}
		_, err = reconcilers[id.GVR].Reconcile(ctx, id, object.(*unstructured.Unstructured), oneStage(desired...))
		return err
	}
}

// in calls run for one of two shards in the background.
func (p *childrenProcess) in(shard int, run func(context.Context) error) (stop func() error) {
	return p.h.start(func(ctx context.Context) error { return run(dynamiccontroller.WithShard(ctx, shard, 2)) })
}

// wantCached waits until the cache of the parents' children holds the given number of objects with the given prefixes.
func (p *childrenProcess) wantCached(what string, parents []int, n int, prefixes ...string) {
	p.h.Helper()
	p.h.eventually(what, func() error {
		for _, i := range parents {
			lister, err := p.SecondaryLister(p.parents[i], p.watch.Key())
			if err != nil {
				return err
			}
			objects, err := lister.Objects("", nil)
			if err != nil {
				return err
			}
			if len(objects) != n {
				return fmt.Errorf("the cache of type %d holds %d children, want %d", i, len(objects), n)
			}
			for _, object := range objects {
				if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(object.GetName(), p) }) {
					return fmt.Errorf("the cache of type %d holds %s", i, object.GetName())
				}
			}
		}
		return nil
	})
}

// Children of an earlier release have no label. Then three processes with two shards take over: a leads shard 0, b
// leads shard 1, and c keeps shard 0 warm, and leads it when it moves. Each type has 2 parents with 5 children each.
func TestH8_ReplicasCacheTheChildrenOfTheirShards(t *testing.T) {
	const perParent = 5
	h := newHarness(t)
	parents := []gvrType{h.typeIn(0), h.typeIn(1), h.typeIn(0), h.typeIn(1)}
	mapper, _ := h.mapperOf(parents...)
	var ids []dynamiccontroller.ObjectIdentifiers
	for i, gvr := range parents {
		for _, name := range []string{"x", "y"} {
			name = fmt.Sprintf("p%d-%s", i, name)
			h.apply(gvr, name, 0)
			ids = append(ids, h.id(gvr, name))
		}
	}
	const all, perShard = 8 * perParent, 4 * perParent
	zero, one := []int{0, 2}, []int{1, 3}
	label := children.BucketLabel(platformName)

	earlier := h.newChildrenProcess(mapper, parents, perParent, false)
	stop := h.run(earlier.DynamicController)
	earlier.wantCached("the earlier release holds all children", []int{0, 1, 2, 3}, all, "p")
	h.noError(stop())

	a := h.newChildrenProcess(mapper, parents, perParent, true)
	b := h.newChildrenProcess(mapper, parents, perParent, true)
	c := h.newChildrenProcess(mapper, parents, perParent, true)
	stopC := c.in(0, c.RunWatches)
	c.wantCached("without labels, the standby holds all children", zero, all, "p")
	stopA := a.in(0, a.Run)
	h.eventually("the children of shard 0 are labelled", func() error {
		for _, i := range zero {
			if child := h.get(configMaps, h.namespace, fmt.Sprintf("p%d-y-%d", i, perParent-1)); child.GetLabels()[label] == "" {
				return fmt.Errorf("%s has no label", child.GetName())
			}
		}
		return nil
	})
	c.wantCached("those of shard 1 have no label", zero, all, "p")
	stopB := b.in(1, b.Run)
	a.wantCached("the leader of shard 0", zero, perShard, "p0", "p2")
	c.wantCached("the standby of shard 0", zero, perShard, "p0", "p2")
	b.wantCached("the leader of shard 1", one, perShard, "p1", "p3")
	for i, gvr := range parents {
		child := h.get(configMaps, h.namespace, fmt.Sprintf("p%d-x-0", i))
		if got, want := child.GetLabels()[label],
			dynamiccontroller.BucketOf(gvr.GroupResource()); got != want {
			t.Errorf("the child of type %d has the bucket %q, want %q", i, got, want)
		}
	}
	t.Logf("of %d children, each replica holds %d; the longest request URI has %d bytes", all, perShard, a.longest.Load())

	// A user edits children, and one of them gets the bucket of the other shard.
	h.merge(configMaps, h.namespace, "p0-x-1", `{"data":{"key":"edited"}}`)
	h.merge(configMaps, h.namespace, "p2-y-2", fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`,
		label, dynamiccontroller.BucketOf(parents[1].GroupResource())))
	h.eventually("the children are corrected", func() error {
		edited, hidden := h.get(configMaps, h.namespace, "p0-x-1"), h.get(configMaps, h.namespace, "p2-y-2")
		if value, _, err := unstructured.NestedString(edited.Object, "data", "key"); err != nil || value != "desired" {
			return fmt.Errorf("the edited child contains %q: %w", value, err)
		}
		if got := hidden.GetLabels()[label]; got !=
			dynamiccontroller.BucketOf(parents[2].GroupResource()) {
			return fmt.Errorf("the child has the bucket %s", got)
		}
		return nil
	})
	a.wantCached("the corrected children", zero, perShard, "p0", "p2")

	lists := c.lists.Load()
	h.noError(stopA())
	if n := a.WatchCount(); n != 0 {
		t.Errorf("the shard has left %d watches", n)
	}
	stopLeading := c.in(0, c.Run)
	for _, id := range ids {
		if shards.Of(id.GVR.GroupResource(), 2) == 0 {
			c.calls.waitFor(id, 1)
		}
	}
	h.merge(configMaps, h.namespace, "p0-y-3", `{"data":{"key":"edited"}}`)
	h.eventually("the new leader corrects a child", func() error {
		edited := h.get(configMaps, h.namespace, "p0-y-3")
		if value, _, _ := unstructured.NestedString(edited.Object, "data", "key"); value != "desired" {
			return errors.New("it was not corrected")
		}
		return nil
	})
	if n := c.lists.Load() - lists; n != 0 {
		t.Errorf("the promotion sent %d lists of children", n)
	}
	stopA = a.in(1, a.RunWatches)
	a.wantCached("the former leader keeps shard 1 warm", one, perShard, "p1", "p3")
	for _, stop := range []func() error{stopA, stopB, stopLeading, stopC} {
		h.noError(stop())
	}
}
