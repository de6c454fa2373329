package replica

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"
)

// fakeLeases is an API server that stores Leases. It rejects updates with an outdated version, and it can be watched.
type fakeLeases struct {
	mu       sync.Mutex // guards the fields below
	leases   map[string]*coordinationv1.Lease
	version  int
	watchers map[*fakeWatch]struct{}
}

func newFakeLeases() *fakeLeases {
	return &fakeLeases{leases: map[string]*coordinationv1.Lease{}, watchers: map[*fakeWatch]struct{}{}}
}

// holder returns the holder identity of a Lease, or an empty string.
func (s *fakeLeases) holder(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lease := s.leases[name]; lease != nil {
		return ptr.Deref(lease.Spec.HolderIdentity, "")
	}
	return ""
}

func (s *fakeLeases) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.leases))
}

// edit changes a Lease as a user would. If change is nil, it deletes the Lease.
func (s *fakeLeases) edit(name string, change func(*coordinationv1.Lease)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.leases[name]
	switch {
	case old == nil:
	case change == nil:
		s.setLocked(old, nil)
	default:
		lease := old.DeepCopy()
		change(lease)
		s.setLocked(old, lease)
	}
}

// setLocked replaces a Lease and notifies the watchers. Either of the two can be nil.
func (s *fakeLeases) setLocked(before, after *coordinationv1.Lease) *coordinationv1.Lease {
	s.version++
	event := watch.Event{Type: watch.Modified}
	switch {
	case after == nil:
		event.Type = watch.Deleted
		delete(s.leases, before.Name)
		after = before.DeepCopy()
		after.ResourceVersion = strconv.Itoa(s.version)
	case before == nil:
		event.Type = watch.Added
		fallthrough
	default:
		after.ResourceVersion = strconv.Itoa(s.version)
		s.leases[after.Name] = after
	}
	event.Object = after.DeepCopy()
	for w := range s.watchers {
		if w.selector.Matches(labels.Set(after.Labels)) {
			w.add(event)
		}
	}
	return after.DeepCopy()
}

// fakeLeaseClient is the client of one replica.
type fakeLeaseClient struct {
	coordinationclient.LeaseInterface
	server   *fakeLeases
	requests atomic.Int64
	down     atomic.Bool
	after    atomic.Bool // whether the responses to writes are lost
	deaf     atomic.Bool // whether watches deliver nothing
	// before, if not nil, is called before each request. It can block or return an error.
	before atomic.Pointer[func(ctx context.Context, verb, name string) error]
}

func (c *fakeLeaseClient) Leases(string) coordinationclient.LeaseInterface { return c }

var errDown = errors.New("connection refused")

// begin locks the server, unless the request fails.
func (c *fakeLeaseClient) begin(ctx context.Context, verb, name string) error {
	c.requests.Add(1)
	if before := c.before.Load(); before != nil {
		if err := (*before)(ctx, verb, name); err != nil {
			return err
		}
	}
	if c.down.Load() {
		return errDown
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.server.mu.Lock()
	return nil
}

func (c *fakeLeaseClient) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := c.begin(ctx, verbGet, name); err != nil {
		return nil, err
	}
	defer c.server.mu.Unlock()
	lease := c.server.leases[name]
	if lease == nil {
		return nil, apierrors.NewNotFound(leases, name)
	}
	return lease.DeepCopy(), nil
}

func (c *fakeLeaseClient) Create(
	ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	if err := c.begin(ctx, verbCreate, lease.Name); err != nil {
		return nil, err
	}
	defer c.server.mu.Unlock()
	if c.server.leases[lease.Name] != nil {
		return nil, apierrors.NewAlreadyExists(leases, lease.Name)
	}
	return c.respond(c.server.setLocked(nil, lease.DeepCopy()))
}

func (c *fakeLeaseClient) Update(
	ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	if err := c.begin(ctx, verbUpdate, lease.Name); err != nil {
		return nil, err
	}
	defer c.server.mu.Unlock()
	old := c.server.leases[lease.Name]
	switch {
	case old == nil:
		return nil, apierrors.NewNotFound(leases, lease.Name)
	case old.ResourceVersion != lease.ResourceVersion:
		return nil, apierrors.NewConflict(leases, lease.Name, errors.New("it was changed"))
	}
	return c.respond(c.server.setLocked(old, lease.DeepCopy()))
}

// respond returns the response to a write.
func (c *fakeLeaseClient) respond(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if c.after.Load() {
		return nil, errDown
	}
	return lease, nil
}

func (c *fakeLeaseClient) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	if err := c.begin(ctx, "delete", name); err != nil {
		return err
	}
	defer c.server.mu.Unlock()
	old := c.server.leases[name]
	switch {
	case old == nil:
		return apierrors.NewNotFound(leases, name)
	case o.Preconditions != nil && *o.Preconditions.ResourceVersion != old.ResourceVersion:
		return apierrors.NewConflict(leases, name, errors.New("it was changed"))
	}
	c.server.setLocked(old, nil)
	return nil
}

func (c *fakeLeaseClient) List(ctx context.Context, o metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	if err := c.begin(ctx, "list", ""); err != nil {
		return nil, err
	}
	defer c.server.mu.Unlock()
	selector, err := labels.Parse(o.LabelSelector)
	if err != nil {
		return nil, err
	}
	list := &coordinationv1.LeaseList{}
	list.ResourceVersion = strconv.Itoa(c.server.version)
	for _, lease := range c.server.leases {
		if selector.Matches(labels.Set(lease.Labels)) {
			list.Items = append(list.Items, *lease.DeepCopy())
		}
	}
	return list, nil
}

// Watch sends all Leases first if the options ask for them or name no version. The reflector of client-go does not
// depend on the versions in between, because the fake server loses no events.
func (c *fakeLeaseClient) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if err := c.begin(ctx, "watch", ""); err != nil {
		return nil, err
	}
	defer c.server.mu.Unlock()
	selector, err := labels.Parse(o.LabelSelector)
	if err != nil {
		return nil, err
	}
	w := &fakeWatch{
		server: c.server, deaf: &c.deaf, selector: selector, events: make(chan watch.Event), stopped: make(chan struct{}),
		added: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	for _, lease := range c.server.leases {
		newer, err := strconv.Atoi(lease.ResourceVersion)
		since, _ := strconv.Atoi(o.ResourceVersion)
		if err == nil && selector.Matches(labels.Set(lease.Labels)) &&
			(ptr.Deref(o.SendInitialEvents, false) || newer > since) {
			w.add(watch.Event{Type: watch.Added, Object: lease.DeepCopy()})
		}
	}
	if ptr.Deref(o.SendInitialEvents, false) {
		w.add(watch.Event{Type: watch.Bookmark, Object: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: strconv.Itoa(c.server.version),
			Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}})
	}
	c.server.watchers[w] = struct{}{}
	go w.run()
	return w, nil
}

// fakeWatch is a watch with an unlimited buffer.
type fakeWatch struct {
	server   *fakeLeases
	deaf     *atomic.Bool
	selector labels.Selector
	events   chan watch.Event
	added    chan struct{} // has a buffer of one
	stop     sync.Once
	stopped  chan struct{}
	ended    chan struct{}

	mu      sync.Mutex // guards pending
	pending []watch.Event
}

func (w *fakeWatch) add(event watch.Event) {
	w.mu.Lock()
	w.pending = append(w.pending, event)
	w.mu.Unlock()
	select {
	case w.added <- struct{}{}:
	default:
	}
}

func (w *fakeWatch) run() {
	defer close(w.ended)
	defer close(w.events)
	for {
		w.mu.Lock()
		pending := w.pending
		w.pending = nil
		w.mu.Unlock()
		for _, event := range pending {
			for w.deaf.Load() {
				select {
				case <-time.After(10 * time.Millisecond):
				case <-w.stopped:
					return
				}
			}
			select {
			case w.events <- event:
			case <-w.stopped:
				return
			}
		}
		select {
		case <-w.added:
		case <-w.stopped:
			return
		}
	}
}

func (w *fakeWatch) ResultChan() <-chan watch.Event { return w.events }

func (w *fakeWatch) Stop() {
	w.stop.Do(func() {
		w.server.mu.Lock()
		delete(w.server.watchers, w)
		w.server.mu.Unlock()
		close(w.stopped)
	})
	<-w.ended
}
