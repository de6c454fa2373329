package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/dynamiccontroller"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
	"github.com/dynamic-controller/engine/internal/shards"
)

var (
	_ replica.ShardDrainer = (*dynamiccontroller.DynamicController)(nil)
	_ replica.CacheSyncer  = dynamiccontroller.WatchRunner{}
	_ replica.ShardSyncer  = dynamiccontroller.WatchRunner{}
	_ replica.ShardMeter   = (*dynamiccontroller.DynamicController)(nil)
)

// shardCalls records the handler calls of all replicas.
type shardCalls struct {
	mu         sync.Mutex // guards the fields below
	running    map[dynamiccontroller.ObjectIdentifiers]string
	calls      map[dynamiccontroller.ObjectIdentifiers][]string // the replicas that called the handler, in order
	violations []string
}

func newShardCalls() *shardCalls {
	return &shardCalls{
		running: map[dynamiccontroller.ObjectIdentifiers]string{},
		calls:   map[dynamiccontroller.ObjectIdentifiers][]string{},
	}
}

func (c *shardCalls) begin(id dynamiccontroller.ObjectIdentifiers, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other, ok := c.running[id]; ok {
		c.violations = append(c.violations, fmt.Sprintf("%s is reconciled by %s and %s", id, other, name))
	}
	c.running[id] = name
	c.calls[id] = append(c.calls[id], name)
}

func (c *shardCalls) end(id dynamiccontroller.ObjectIdentifiers) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, id)
}

// reset forgets all calls.
func (c *shardCalls) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.calls)
}

// missing returns an error unless each object was reconciled.
func (c *shardCalls) missing(ids []dynamiccontroller.ObjectIdentifiers) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, id := range ids {
		if len(c.calls[id]) == 0 {
			n++
		}
	}
	if n > 0 {
		return fmt.Errorf("%d of %d objects were not reconciled", n, len(ids))
	}
	return nil
}

// shardMember is a replica with shards, and an engine.
type shardMember struct {
	*replica.Replica
	h      *harness
	name   string
	wire   *wire
	engine *dynamiccontroller.DynamicController
	stop   func() error
}

const shardUser = "a-member"

// allowShards gives a user the permissions that package replica documents for shards.
func (h *harness) allowShards() {
	h.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: shardUser}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"},
		Verbs: []string{"create", "get", "update", "list", "watch", "delete"},
	}}}
	_, err := h.clients.RbacV1().Roles(h.namespace).Create(h.Context(), role, metav1.CreateOptions{})
	h.noError(err)
	_, err = h.clients.RbacV1().RoleBindings(h.namespace).Create(h.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: shardUser},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: shardUser},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: shardUser}},
	}, metav1.CreateOptions{})
	h.noError(err)
}

const testShards = 8

// shardMember starts a replica. The handlers write with the client.
func (h *harness) shardMember(
	name string, served []gvrType, handler func(*shardMember, dynamic.Interface) dynamiccontroller.Handler,
	change ...func(*replica.Options),
) *shardMember {
	h.Helper()
	m, client := h.newShardMember(name, change...)
	for _, gvr := range served {
		h.serve(m.engine, gvr, handler(m, client))
	}
	return m.start()
}

// newShardMember returns a replica that has not been started, and its fenced client.
func (h *harness) newShardMember(name string, change ...func(*replica.Options)) (*shardMember, dynamic.Interface) {
	h.Helper()
	m := &shardMember{h: h, name: name, wire: &wire{}}
	wired := m.wire.through(h)
	o := replicaOptions(h, name)
	o.Shards = testShards
	for _, c := range change {
		c(&o)
	}
	leases := rest.CopyConfig(wired.config)
	leases.Impersonate = rest.ImpersonationConfig{UserName: shardUser}
	m.Replica = must(replica.New(h.logger().WithName(name), leases, o))
	m.engine = wired.controller(dynamiccontroller.Config{})
	return m, must(dynamic.NewForConfig(m.Fence(wired.config)))
}

func (m *shardMember) start() *shardMember {
	m.h.Helper()
	m.h.noError(errors.Join(
		m.Register("watches", m.engine.Watches(), replica.ScopeWarmShard),
		m.Register("engine", m.engine, replica.ScopeShard),
	))
	m.stop = m.h.start(m.Run)
	return m
}

// handler returns a handler that records its calls and sends a write.
func (c *shardCalls) handler(m *shardMember, client dynamic.Interface) dynamiccontroller.Handler {
	return func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		c.begin(id, m.name)
		defer c.end(id)
		_, err := client.Resource(id.GVR).Namespace(id.Namespace()).Patch(ctx, id.Name(), types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"written":"true"}}}`), metav1.PatchOptions{DryRun: []string{"All"}})
		return err
	}
}

// leads returns the number of shards that the replica leads.
func (m *shardMember) leads() (n int) {
	for _, s := range m.Status().Shards {
		if s.Leading {
			n++
		}
	}
	return n
}

// eventuallyLed waits until the replicas lead all shards, and each of them leads at least the given number.
func eventuallyLed(h *harness, atLeast int, members ...*shardMember) {
	h.Helper()
	h.eventually("all shards are led", func() error {
		var led []int
		sum := 0
		for _, m := range members {
			led = append(led, m.leads())
			sum += m.leads()
		}
		if sum != testShards || slices.Min(led) < atLeast {
			return fmt.Errorf("the replicas lead %v shards", led)
		}
		return nil
	})
}

// eventuallyWarm waits until two replicas keep each shard warm.
func eventuallyWarm(h *harness, members ...*shardMember) {
	h.Helper()
	h.eventually("all shards have two copies", func() error {
		copies := make([]int, testShards)
		for _, m := range members {
			for i, s := range m.Status().Shards {
				if s.Warm {
					copies[i]++
				}
			}
		}
		if slices.ContainsFunc(copies, func(n int) bool { return n != 2 }) {
			return fmt.Errorf("copies: %v", copies)
		}
		return nil
	})
}

// Three replicas divide twelve types. One of them leaves, and another one crashes.
func TestH5_EachObjectIsReconciledOnceAfterItsShardHasMoved(t *testing.T) {
	h := newHarness(t)
	h.allowShards()
	var served []gvrType
	var ids []dynamiccontroller.ObjectIdentifiers
	for n := range 12 {
		gvr := h.newType()
		for shards.Of(gvr.GroupResource(), testShards) != n%testShards { // so that each replica leads some types
			gvr = h.newType()
		}
		served = append(served, h.define(gvr))
		for i := range 5 {
			name := fmt.Sprintf("w%d", i)
			h.apply(gvr, name, 0)
			ids = append(ids, h.id(gvr, name))
		}
	}
	calls := newShardCalls()
	var members []*shardMember
	for _, name := range strings.Fields("a b c") {
		members = append(members, h.shardMember(name, served, calls.handler))
	}
	a, b, c := members[0], members[1], members[2]
	eventuallyLed(h, 2, a, b, c)
	eventuallyWarm(h, a, b, c)
	h.eventually("all objects are reconciled", func() error { return calls.missing(ids) })
	lists := countLists(b, c)
	calls.reset()
	moved := objectsOf(h, a, ids)
	h.noError(a.stop())
	stopped := time.Now()
	h.eventually("the objects of the first replica are reconciled", func() error { return calls.missing(moved) })
	t.Logf("%d objects were reconciled %s after their leader had left", len(moved), time.Since(stopped))
	if n := lists.Load(); n > 0 {
		t.Errorf("the other replicas sent %d list or watch requests before that", n)
	}
	eventuallyLed(h, 1, b, c)
	eventuallyWarm(h, b, c)

	calls.reset()
	moved = objectsOf(h, b, ids)
	b.wire.set(func(*http.Request, send) (*http.Response, error) { return nil, errors.New("disconnected") })
	crashed := time.Now()
	h.eventually("the objects of the second replica are reconciled", func() error { return calls.missing(moved) })
	t.Logf("%d objects were reconciled %s after their leader had crashed (expected: at most %s)",
		len(moved), time.Since(crashed), 3*time.Second+5*retryPeriod)
	eventuallyLed(h, testShards, c)
	b.wire.set(nil)
	eventuallyLed(h, 1, b, c)

	calls.mu.Lock()
	defer calls.mu.Unlock()
	for _, v := range calls.violations {
		t.Error(v)
	}
}

// countLists counts the list and watch requests for widgets that the replicas send.
func countLists(members ...*shardMember) *atomic.Int64 {
	n := &atomic.Int64{}
	for _, m := range members {
		m.wire.set(func(r *http.Request, send send) (*http.Response, error) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/widgets") {
				n.Add(1)
			}
			return send(r)
		})
	}
	return n
}

// objectsOf returns the objects of the types that the replica reconciles.
func objectsOf(h *harness, m *shardMember, ids []dynamiccontroller.ObjectIdentifiers) (
	of []dynamiccontroller.ObjectIdentifiers,
) {
	h.Helper()
	status := m.Status().Shards
	for _, id := range ids {
		if index := shards.Of(id.GVR.GroupResource(), testShards); status[index].Leading {
			of = append(of, id)
		}
	}
	if len(of) == 0 {
		h.Fatal("the replica leads no types")
	}
	return of
}
