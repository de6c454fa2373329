package fleet

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica/internal/leasename"
	"github.com/dynamic-controller/engine/internal/listwatch"
)

// Run watches the Leases until ctx is cancelled.
func (v *View) Run(ctx context.Context, log logr.Logger, client coordinationclient.LeaseInterface) {
	store := &viewStore{view: v}
	loop := listwatch.NewLoop(listwatch.NewRequests(leaseClient{client}), store, listwatch.Options{
		Log: log, GVR: coordinationv1.SchemeGroupVersion.WithResource("leases"),
		LabelSelector: leasename.Label + "=" + leasename.LabelValue(v.name), MaxDelay: maxDelay,
	})
	v.loop.Store(loop)
	loop.Run(ctx)
}

// Relist lists the Leases again. It is used if the watch delivers nothing although Leases must have changed.
func (v *View) Relist() {
	if loop := v.loop.Load(); loop != nil {
		loop.Relist()
	}
}

// maxDelay limits the delay after a failed list or watch.
const maxDelay = 5 * time.Second

// leaseClient is a typed client with the methods that a Loop needs.
type leaseClient struct {
	client coordinationclient.LeaseInterface
}

// IsWatchListSemanticsUnSupported makes the Loop send plain lists. Leases are few, and a list is also the answer to a
// watch that hangs, as a streaming list may do then, too.
func (leaseClient) IsWatchListSemanticsUnSupported() bool { return true }

func (c leaseClient) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return c.client.List(ctx, o)
}

func (c leaseClient) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.client.Watch(ctx, o)
}

// viewStore passes the Leases to a view. It is used by one goroutine.
type viewStore struct {
	view   *View
	listed map[string]*coordinationv1.Lease // by name; the list that is being received
	known  map[string]*coordinationv1.Lease // the Leases of the view
}

var _ listwatch.Store = (*viewStore)(nil)

// MinVersion returns an empty string: an outdated list does no harm.
func (s *viewStore) MinVersion() string { return "" }

// BeginList begins to collect a list.
func (s *viewStore) BeginList() { s.listed = map[string]*coordinationv1.Lease{} }

// Collect adds an item to the list.
func (s *viewStore) Collect(event watch.Event) error {
	lease, ok := event.Object.(*coordinationv1.Lease)
	switch {
	case !ok:
	case event.Type == watch.Deleted:
		delete(s.listed, lease.Name)
	default:
		s.listed[lease.Name] = lease
	}
	return nil
}

// EndList replaces the Leases of the view.
func (s *viewStore) EndList(_ listwatch.ListResult, stored func()) {
	before := s.known
	s.known, s.listed = s.listed, nil
	for name, lease := range before {
		if s.known[name] == nil {
			s.view.remove(lease)
		}
	}
	for _, lease := range s.known {
		s.view.put(lease)
	}
	s.view.setSynced()
	if stored != nil {
		stored()
	}
}

// Apply records a change.
func (s *viewStore) Apply(event watch.Event) error {
	lease, ok := event.Object.(*coordinationv1.Lease)
	switch {
	case !ok || event.Type == watch.Bookmark:
	case event.Type == watch.Deleted:
		delete(s.known, lease.Name)
		s.view.remove(lease)
	default:
		s.known[lease.Name] = lease
		s.view.put(lease)
	}
	return nil
}

// Clear does nothing, because Leases are a type of every API server.
func (s *viewStore) Clear() {}
