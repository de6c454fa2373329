package integration

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/internal/shards"
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
func (r *replacer) edit(parents int) (last map[string]string, err error) {
	last = map[string]string{}
	in := func(gvr gvrType) dynamic.ResourceInterface {
		return r.harness.client.Resource(gvr).Namespace(r.namespace)
	}
	for i := range *ownWrites {
		name := fmt.Sprintf("p%d", i%parents)
		last[name] = fmt.Sprint(i)
		_, err := in(r.parents).Patch(r.Context(), name, types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"wanted":"`+last[name]+`"}}}`), metav1.PatchOptions{})
		if err == nil && i%7 == 6 {
			err = in(r.children).DeleteCollection(r.Context(), metav1.DeleteOptions{},
				metav1.ListOptions{LabelSelector: "parent=" + name})
		}
		if err != nil {
			return nil, err
		}
		time.Sleep(rand.N(time.Second / time.Duration(parents)))
	}
	return last, nil
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

// start starts a controller outside of a replica.
func (r *replacer) start(config dynamiccontroller.Config) {
	r.controller = r.lagging(*ownWritesLag).controller(config)
	r.client = must(dynamic.NewForConfig(dynamiccontroller.RecordWrites(r.config)))
	r.harness.serve(r.controller, r.parents, r.handle, r.owned)
	r.run(r.controller)
	r.synced(r.controller, r.parents)
}

// member starts a replica.
func (r *replacer) member(name string, change ...func(*replica.Options)) *shardMember {
	own := *r
	m, client := r.lagging(*ownWritesLag).newShardMember(name, change...)
	own.controller, own.client = m.engine, client
	r.harness.serve(m.engine, r.parents, own.handle, r.owned)
	return m.start()
}

// changeLeaders makes the leader leave, and cuts the next one off until another one leads, until the edits are over.
// There are always two replicas, and each of them has synced when it begins to lead.
func (r *replacer) changeLeaders(over <-chan struct{}, change ...func(*replica.Options)) {
	shard := shards.Of(r.parents.GroupResource(), testShards)
	leads := func(m *shardMember) bool {
		status := m.Status()
		return status.Leading && len(change) > 0 || len(change) == 0 && len(status.Shards) > 0 && status.Shards[shard].Leading
	}
	members := []*shardMember{r.member("m0", change...), r.member("m1", change...)}
	// next waits until a replica leads that did not lead before.
	next := func(former *shardMember) (leader *shardMember) {
		r.eventually("another replica leads", func() error {
			i := slices.IndexFunc(members, leads)
			if i < 0 || members[i] == former {
				return errors.New("none does")
			}
			leader = members[i]
			return nil
		})
		return leader
	}
	clean, cut := 0, 0
	for {
		leader := next(nil)
		for _, m := range members {
			r.noError(m.engine.WaitForGVRSync(r.Context(), r.parents))
		}
		select {
		case <-over:
			if cut > 0 {
				r.Logf("%d leaders left, and %d were cut off", clean, cut)
				return
			}
		default:
		}
		if clean <= cut {
			clean++
			r.noError(leader.stop())
			members = slices.DeleteFunc(members, func(m *shardMember) bool { return m == leader })
			members = append(members, r.member(fmt.Sprintf("m%d", clean+1), change...))
			continue
		}
		cut++
		leader.wire.set(func(*http.Request, send) (*http.Response, error) { return nil, errors.New("disconnected") })
		next(leader)
		leader.wire.set(nil)
	}
}

// All watches lag. Parents are edited, and children are deleted, before and while they are replaced. A handler without
// expectations creates no child twice, also if the leader changes. With the promise switched off, it does.
func TestD12_HandlersReadWhatTheyHaveWritten(t *testing.T) {
	parents := max(10, *ownWrites/50)
	withoutShards := func(o *replica.Options) { o.Shards = 0 }
	for name, test := range map[string]struct {
		start      func(r *replacer, over <-chan struct{})
		duplicates bool
	}{
		"one Lease": {start: func(r *replacer, over <-chan struct{}) { r.changeLeaders(over, withoutShards) }},
		"shards":    {start: func(r *replacer, over <-chan struct{}) { r.changeLeaders(over) }},
		"without the promise": {duplicates: true, start: func(r *replacer, _ <-chan struct{}) {
			r.start(dynamiccontroller.Config{MaxWriteLag: -1})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.allowShards()
			r := &replacer{harness: h, parents: h.widgets(), children: h.widgets()}
			r.owned = dynamiccontroller.Owns(r.children)
			counted := r.census()
			for i := range parents {
				h.apply(r.parents, fmt.Sprintf("p%d", i), 0)
			}
			var last map[string]string
			var err error
			over := make(chan struct{})
			go func() {
				defer close(over)
				last, err = r.edit(parents)
			}()
			test.start(r, over)
			<-over
			h.noError(err)
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
