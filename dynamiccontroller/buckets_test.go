package dynamiccontroller_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/controllertest"
	"github.com/dynamic-controller/engine/internal/shards"
)

const bucketLabel = "example.com/bucket"

var parts = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "parts"}

// family is a server with a parent of each type, whose children are parts. The parent of the type with index i is named
// p<i>, and the type belongs to shard i modulo 2.
type family struct {
	*controllertest.Server
	t       *testing.T
	parents []dynamiccontroller.ObjectIdentifiers
	seen    int // the number of actions that lists has seen
}

func newFamily(t *testing.T, types int) *family {
	gvrs := shardedTypes(types, 2)
	served := []controllertest.Type{{GVR: parts, Kind: "Part"}}
	for i, gvr := range gvrs {
		served = append(served, controllertest.Type{GVR: gvr, Kind: fmt.Sprint("Type", i)})
	}
	f := &family{Server: controllertest.NewServer(served...), t: t}
	for i, gvr := range gvrs {
		parent := &unstructured.Unstructured{}
		parent.SetGroupVersionKind(gvr.GroupVersion().WithKind(fmt.Sprint("Type", i)))
		parent.SetNamespace("default")
		parent.SetName(fmt.Sprint("p", i))
		f.parents = append(f.parents, f.Apply(parent))
	}
	return f
}

// bucketOf returns the bucket of a parent's type.
func (f *family) bucketOf(parent int) string {
	return dynamiccontroller.BucketOf(f.parents[parent].GVR.GroupResource())
}

// putIn creates or changes a child. If bucket is empty, it has no label.
func (f *family) putIn(bucket string, parent int, name, value string) {
	child := &unstructured.Unstructured{Object: map[string]any{"spec": value}}
	child.SetGroupVersionKind(parts.GroupVersion().WithKind("Part"))
	child.SetNamespace("default")
	child.SetName(name)
	if bucket != "" {
		child.SetLabels(map[string]string{bucketLabel: bucket})
	}
	owner := f.Get(f.parents[parent])
	child.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())})
	f.Apply(child)
	synctest.Wait()
}

func (f *family) put(parent int, name, value string) {
	f.putIn(f.bucketOf(parent), parent, name, value)
}

// lists returns the label selectors of the lists of children since the last call.
func (f *family) lists() (selectors []string) {
	synctest.Wait()
	actions := f.Actions()
	for _, action := range actions[f.seen:] {
		if list, ok := action.(clienttesting.ListAction); ok && action.GetResource() == parts {
			selectors = append(selectors, list.GetListRestrictions().Labels.String())
		}
	}
	f.seen = len(actions)
	return selectors
}

// narrowed returns a selector for the children of shard 0 that also has the given terms, as the fake client formats it.
func narrowed(terms string) string {
	return must(labels.Parse(terms + shards.Shard{Index: 0, Count: 2}.Selector(bucketLabel))).String()
}

// familyProcess is a process that serves all types.
type familyProcess struct {
	*calls
	f          *family
	controller *dynamiccontroller.DynamicController
	key        dynamiccontroller.WatchKey
}

// process returns a process whose types all have the given watch of children. By default, it is Owns with a bucket
// label.
func (f *family) process(watch ...dynamiccontroller.Watch) *familyProcess {
	f.t.Helper()
	p := &familyProcess{calls: newCalls(succeed), f: f}
	p.controller = dynamiccontroller.NewDynamicController(logr.Discard(),
		dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1}, f,
		dynamiccontroller.WithMetadataClient(f.MetadataClient()))
	watch = append(watch, dynamiccontroller.Owns(parts, dynamiccontroller.WithBucketLabel(bucketLabel)))
	p.key = watch[0].Key()
	for _, parent := range f.parents {
		if err := p.controller.StartServingGVK(f.t.Context(), parent.GVR, p.handle, watch[0]); err != nil {
			f.t.Fatal(err)
		}
	}
	return p
}

// in calls run for a shard in the background. The function stop ends it.
func (p *familyProcess) in(index, count int, run func(context.Context) error) (stop func()) {
	end := inBackground(func(ctx context.Context) error {
		return run(dynamiccontroller.WithShard(ctx, index, count))
	})
	return func() {
		if err := end(); err != nil {
			p.f.t.Error(err)
		}
		synctest.Wait()
	}
}

// wantCache compares the children in the caches of the types with the given parents, and the number of watches.
func (p *familyProcess) wantCache(what string, watches int, parents []int, want ...string) {
	p.f.t.Helper()
	synctest.Wait()
	for _, i := range parents {
		lister := must(p.controller.SecondaryLister(p.f.parents[i].GVR, p.key))
		var got []string
		for _, object := range must(lister.Objects("", nil)) {
			got = append(got, object.GetName())
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			p.f.t.Errorf("%s: type %d has the children %q in its cache, want %q", what, i, got, want)
		}
	}
	if n := p.controller.WatchCount(); n != watches {
		p.f.t.Errorf("%s: %d watches, want %d", what, n, watches)
	}
}

// Process a leads shard 0, and process b leads shard 1. Process c keeps shard 0 warm, and leads it later.
func TestH8_ProcessesHoldTheChildrenOfTheirShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFamily(t, 4)
		for i := range f.parents {
			f.put(i, fmt.Sprintf("of-%d-a", i), "1")
			f.put(i, fmt.Sprintf("of-%d-b", i), "1")
		}
		zero, one := strings.Fields("of-0-a of-0-b of-2-a of-2-b"), strings.Fields("of-1-a of-1-b of-3-a of-3-b")
		a, b, c := f.process(), f.process(), f.process()
		stopA, stopB := a.in(0, 2, a.controller.Run), b.in(1, 2, b.controller.Run)
		stopC := c.in(0, 2, c.controller.RunWatches)
		if n := len(f.lists()); n != 3 {
			t.Errorf("three processes sent %d lists of children", n)
		}
		a.wantCache("a leads", 3, []int{0, 2}, zero...)
		b.wantCache("b leads", 3, []int{1, 3}, one...)
		c.wantCache("c is warm", 3, []int{0, 2}, zero...)
		a.want(t, "the run of a", named("p0", "p2"))
		b.want(t, "the run of b", named("p1", "p3"))

		f.put(0, "of-0-a", "2")
		f.put(3, "of-3-b", "2")
		a.want(t, "changes to children", named("p0"))
		b.want(t, "changes to children", named("p3"))

		stopA() // the shard moves to c
		a.wantCache("after the shard has left", 0, nil)
		for _, s := range a.controller.Status() {
			if s.Secondaries[0].Objects != 0 {
				t.Errorf("the shard has left %+v", s.Secondaries[0])
			}
		}
		stopLeading := c.in(0, 2, c.controller.Run)
		c.want(t, "the promotion of c", named("p0", "p2"))
		f.put(2, "of-2-a", "2")
		c.want(t, "a change to a child", named("p2"))
		if lists := f.lists(); len(lists) != 0 {
			t.Errorf("the move sent lists with the selectors %q", lists)
		}
		stopA = a.in(1, 2, a.controller.RunWatches)
		a.wantCache("a keeps the other shard warm", 3, []int{1, 3}, one...)
		both := a.in(0, 2, a.controller.Run)
		a.wantCache("a has both shards", 6, []int{0, 2}, zero...)
		a.wantCache("a has both shards", 6, []int{1, 3}, one...)
		for _, stop := range []func(){both, stopA, stopB, stopLeading, stopC} {
			stop()
		}
	})
}

// Children of an earlier release have no label.
func TestH8_ChildrenWithoutALabelAreWatchedForEachShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFamily(t, 2)
		f.putIn("", 0, "old-0", "1")
		f.putIn("", 1, "old-1", "1")
		f.put(0, "new-0", "1")
		p := f.process()
		stop := p.in(0, 2, p.controller.Run)
		p.wantCache("before", 2, []int{0}, "new-0", "old-0", "old-1")
		p.want(t, "the run", named("p0"))
		f.putIn("", 0, "old-0", "2")
		p.want(t, "a change to a child", named("p0"))
		f.putIn("", 1, "old-1", "2")
		p.want(t, "a change to a child of another shard", named())
		f.putIn("", 0, "late-0", "1") // by a replica of an earlier release
		p.want(t, "a new child", named("p0"))
		f.put(0, "old-0", "2")
		f.put(1, "old-1", "2")
		p.wantCache("after the children were labelled", 2, []int{0}, "late-0", "new-0", "old-0")
		p.want(t, "the labels", named("p0"))
		stop()
	})
}

// A child gets the bucket of a type in another shard, and the label is put back.
func TestH8_ForgedLabelReconcilesOnlyTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFamily(t, 2)
		f.put(0, "c", "1")
		owner, other := f.process(), f.process()
		defer owner.in(0, 2, owner.controller.Run)()
		defer other.in(1, 2, other.controller.Run)()
		owner.want(t, "the run", named("p0"))
		other.want(t, "the run", named("p1"))
		f.putIn(f.bucketOf(1), 0, "c", "1")
		owner.wantCache("after the label was changed", 2, []int{0})
		other.wantCache("after the label was changed", 2, []int{1}, "c")
		owner.want(t, "the owner", named("p0"))
		f.putIn(f.bucketOf(1), 0, "c", "2")
		other.want(t, "the other shard", named())
		f.put(0, "c", "2")
		owner.wantCache("after the label was put back", 2, []int{0}, "c")
		other.wantCache("after the label was put back", 2, []int{1})
		owner.want(t, "the owner", named("p0"))
		other.want(t, "the other shard", named())
	})
}

// One process serves all types, one shard, a shard of a layout that divides buckets, and one shard while all types are
// watched.
func TestWithBucketLabel_SelectorFollowsTheLayout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFamily(t, 2)
		f.put(0, "of-0", "1")
		f.put(1, "of-1", "1")
		third := shards.Of(f.parents[0].GVR.GroupResource(), 3)
		p := f.process()
		watchAll := func(ctx context.Context) error {
			return p.controller.RunWatches(dynamiccontroller.WithShard(ctx, 0, 1))
		}
		for _, step := range []struct {
			what         string
			index, count int
			also         func(context.Context) error
			lists        []string
			cache        []string
		}{
			{"one shard", 0, 2, nil, []string{narrowed("")}, []string{"of-0"}},
			{"all types", 0, 1, nil, []string{""}, []string{"of-0", "of-1"}},
			{"one shard again", 0, 2, nil, []string{narrowed("")}, []string{"of-0"}},
			{"a layout with three shards", third, 3, nil, []string{""}, []string{"of-0", "of-1"}},
			{"one shard while all types are watched", 0, 2, watchAll, []string{""}, []string{"of-0", "of-1"}},
		} {
			stopAlso := func() {}
			if step.also != nil {
				stopAlso = p.in(0, 1, step.also)
			}
			stop := p.in(step.index, step.count, p.controller.Run)
			if lists := f.lists(); !slices.Equal(lists, step.lists) {
				t.Errorf("%s: lists with the selectors %q, want %q", step.what, lists, step.lists)
			}
			lister := must(p.controller.SecondaryLister(f.parents[0].GVR, p.key))
			var names []string
			for _, object := range must(lister.Objects("", nil)) {
				names = append(names, object.GetName())
			}
			if slices.Sort(names); !slices.Equal(names, step.cache) {
				t.Errorf("%s: the cache holds %q, want %q", step.what, names, step.cache)
			}
			if n := p.take()["p0"]; n != 1 {
				t.Errorf("%s: the object was reconciled %d times", step.what, n)
			}
			stop()
			stopAlso()
		}
	})
}

// A MapFunc returns keys of the type that declares the watch.
func TestWithBucketLabel_NarrowsWatchesWithAMapFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFamily(t, 2)
		existing := must(labels.Parse("!hidden"))
		watch := dynamiccontroller.Watches(parts, func(_ context.Context, child dynamiccontroller.Object) []string {
			return []string{"default/mapped-from-" + child.GetName()}
		}, dynamiccontroller.WithLabelSelector(existing), dynamiccontroller.WithBucketLabel(bucketLabel))
		p := f.process(watch)
		stop := p.in(0, 2, p.controller.Run)
		p.want(t, "the run", named("p0"))
		f.put(0, "a", "1")
		f.put(1, "b", "1")
		p.want(t, "new children", named("mapped-from-a"))
		p.wantCache("the cache", 2, []int{0}, "a")
		if key := watch.Key(); key.LabelSelector != "!hidden" || key.BucketLabel != bucketLabel {
			t.Errorf("the key is %+v", key)
		}
		if lists := f.lists(); !slices.Equal(lists, []string{narrowed("!hidden,")}) {
			t.Errorf("lists with the selectors %q", lists)
		}
		gvr := f.parents[0].GVR // is served again during the run
		if err := p.controller.StopServiceGVK(t.Context(), gvr); err != nil {
			t.Fatal(err)
		}
		if err := p.controller.StartServingGVK(t.Context(), gvr, p.handle, watch); err != nil {
			t.Fatal(err)
		}
		if lists := f.lists(); !slices.Equal(lists, []string{narrowed("!hidden,")}) {
			t.Errorf("a type that is served during the run lists with the selectors %q", lists)
		}
		stop()
	})
}

func TestWithBucketLabel_InvalidOptionsAreErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFamily(t, 1)
		c, gvr := f.process().controller, f.parents[0].GVR
		option := dynamiccontroller.WithBucketLabel(bucketLabel)
		serve := func(w dynamiccontroller.Watch) error { return c.StartServingGVK(t.Context(), gvr, succeed, w) }
		_, standalone := c.StartWatch(parts, func(context.Context, dynamiccontroller.Object,
		) []dynamiccontroller.ObjectIdentifiers {
			return nil
		}, option)
		for name, err := range map[string]error{
			"EveryOwner":       serve(dynamiccontroller.Owns(parts, option, dynamiccontroller.EveryOwner())),
			"EveryOwner first": serve(dynamiccontroller.Owns(parts, dynamiccontroller.EveryOwner(), option)),
			"an empty label":   serve(dynamiccontroller.Owns(parts, dynamiccontroller.WithBucketLabel(""))),
			"an invalid label": serve(dynamiccontroller.Owns(parts, dynamiccontroller.WithBucketLabel("a b"))),
			"StartWatch":       standalone,
		} {
			if err == nil || !strings.Contains(err.Error(), "WithBucketLabel") {
				t.Errorf("%s: the error is %v", name, err)
			}
		}
		if len(c.StandaloneWatches()) != 0 {
			t.Error("StartWatch has started a watch")
		}
	})
}
