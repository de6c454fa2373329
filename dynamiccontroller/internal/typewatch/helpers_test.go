package typewatch

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/dynamic-controller/engine/dynamiccontroller/internal/objects"
	"github.com/dynamic-controller/engine/internal/listwatch"
	"github.com/dynamic-controller/engine/internal/testkit"
)

// Projection and the constants below shorten the tests.
type Projection = objects.Projection

const (
	Keys     = objects.Keys
	Metadata = objects.Metadata
	Full     = objects.Full
	Complete = objects.Complete
)

func (s *Subscription) HasSynced() bool { return s.View().HasSynced() }

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

func newTestPool(s *server) *Pool {
	log := func(schema.GroupVersionResource) logr.Logger { return logr.Discard() }
	return NewPool(Config{Source: s.source(), Log: log})
}

func options(projection Projection) Options {
	return Options{Key: Key{Selection: Selection{GVR: widgets}, Projection: projection}}
}

// Replace stores a list, like the reflector's loop.
func (r *reflector) Replace(list []any, version string) error {
	r.BeginList()
	for _, item := range list {
		if err := r.Collect(apiwatch.Event{Type: apiwatch.Added, Object: item.(kruntime.Object)}); err != nil {
			return err
		}
	}
	r.EndList(listwatch.ListResult{ResourceVersion: version}, noop)
	return nil
}

func (r *reflector) Add(object any) error { return r.apply(apiwatch.Added, object) }

func (r *reflector) Update(object any) error { return r.apply(apiwatch.Modified, object) }

func (r *reflector) Delete(object any) error { return r.apply(apiwatch.Deleted, object) }

func (r *reflector) apply(eventType apiwatch.EventType, object any) error {
	return r.Apply(apiwatch.Event{Type: eventType, Object: object.(kruntime.Object)})
}

func unchanged(obj any) (any, error) { return obj, nil }

func transformed(projection Projection) Options {
	return Options{Key: Key{Selection: Selection{GVR: widgets}, Projection: projection}, Transform: unchanged}
}

// blocking returns the options of a subscription whose event handler calls user code.
func blocking(o Options) Options {
	o.Blocking = true
	return o
}

// object returns an object of the type that a metadata client returns.
func object(name, version string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, ResourceVersion: version,
		Labels:        map[string]string{"a": "b"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
	}}
}

// recorder is an event handler that records its calls.
type recorder struct {
	subscription *Subscription

	mu     sync.Mutex
	events []string
}

func attachRecorder(s *Subscription) *recorder {
	r := &recorder{}
	r.attach(s)
	return r
}

func (r *recorder) attach(s *Subscription) {
	r.subscription = s
	s.Attach(r.handler())
}

// settle waits until the subscription has received everything.
func (s *Subscription) settle() {
	for !s.isSettled() {
		runtime.Gosched()
	}
}

func (s *Subscription) isSettled() bool {
	w := s.lockDelivery()
	defer w.delivery.Unlock()
	return w.pass == nil && s.inbox.isIdle()
}

func (r *recorder) record(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
}

func (r *recorder) handler() EventHandler {
	state := func(o *Object) string {
		if o == nil {
			return "-"
		}
		return o.GetResourceVersion()
	}
	return EventHandler{
		Known: func(batch []*Object) {
			for _, key := range keysOf(batch) {
				r.record("known " + key)
			}
		},
		Synced: func() { r.record("synced") },
		Changed: func(c Change) {
			r.record(fmt.Sprintf("%s %s>%s", c.Key, state(c.Old), state(c.New)))
		},
	}
}

// keysOf returns the sorted keys of objects.
func keysOf(all []*Object) (keys []string) {
	for _, o := range all {
		keys = append(keys, o.Key())
	}
	slices.Sort(keys)
	return keys
}

// take returns the events since the last call, in order.
func (r *recorder) take() []string {
	if r.subscription != nil {
		r.subscription.settle()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// expect compares the events since the last call, in any order.
func (r *recorder) expect(t testing.TB, step string, want ...string) {
	t.Helper()
	got := r.take()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: %s", step, diff)
	}
}

// model is an event handler that checks the calls it receives. No change may be delivered twice, no state may be older
// than the previous one, and no unknown object may be deleted. With Keys, the version before a change is unknown.
type model struct {
	t            testing.TB
	subscription *Subscription

	restarts bool // whether the pool can be stopped and started again, so that objects are announced again

	mu     sync.Mutex
	known  map[string]string // version by key; "?" if it is unknown
	synced bool

	detached atomic.Bool
}

func attachModel(t testing.TB, s *Subscription) *model {
	m := &model{t: t, subscription: s}
	m.attach()
	return m
}

func (m *model) attach() {
	m.mu.Lock()
	m.known, m.synced = map[string]string{}, false
	m.mu.Unlock()
	m.detached.Store(false)
	m.subscription.Attach(m.handler())
}

func (m *model) detach() {
	m.subscription.Detach()
	m.detached.Store(true)
}

func (m *model) handler() EventHandler {
	return EventHandler{
		Known: func(batch []*Object) {
			for _, o := range batch {
				key := o.Key()
				m.update(key, func(before string, known bool) string {
					version := versionOr(o.Record, "?")
					if known && m.synced && !m.restarts {
						m.t.Errorf("%s was announced twice", key)
					}
					if known && before != "?" && version != "?" && number(version) < number(before) {
						m.t.Errorf("%s was announced with version %s after version %s", key, version, before)
					}
					return version
				})
			}
		},
		Synced: func() { m.mu.Lock(); m.synced = true; m.mu.Unlock() },
		Changed: func(c Change) {
			m.update(c.Key, func(before string, known bool) string {
				version := versionOr(recordOf(c.New), "?")
				switch {
				case !m.synced && c.New != nil:
					m.t.Errorf("a change to %s was delivered before Synced was called", c.Key)
				case m.restarts && c.New == nil && !known:
					// While only some namespaces of a watch have been listed, or the others have stopped, objects are not
					// announced, but their deletions are delivered.
					return ""
				case m.synced && known != (c.Old != nil):
					m.t.Errorf("%s: old is %v, known: %v", c.Key, c.Old, known)
				case c.New == nil:
					return ""
				case known && before != "?" && version != "?" && number(version) <= number(before):
					m.t.Errorf("%s went from version %s to %s", c.Key, before, version)
				}
				return version
			})
		},
	}
}

func number(version string) int {
	n, _ := strconv.Atoi(version)
	return n
}

func versionOr(r *objects.Record, otherwise string) string {
	if r == nil || r.GetResourceVersion() == "" {
		return otherwise
	}
	return r.GetResourceVersion()
}

func recordOf(o *Object) *objects.Record {
	if o == nil {
		return nil
	}
	return o.Record
}

func (m *model) update(key string, next func(version string, known bool) string) {
	if m.detached.Load() {
		m.t.Errorf("the handler was called for %s after it was detached", key)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	version, known := m.known[key]
	if now := next(version, known); now == "" {
		delete(m.known, key)
	} else {
		m.known[key] = now
	}
}

// close detaches the handler, closes the subscription and waits until it has ended.
func (m *model) close() {
	m.detach()
	closeAndWait(m.subscription)
}

func closeAndWait(s *Subscription) {
	s.Close()
	<-s.Ended()
}

// diff compares the state that the handler has received with the server's state.
func (m *model) diff(versions map[string]string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := map[string]string{}
	for key, version := range m.known {
		known[key] = version
		if version == "?" {
			known[key] = versions[key]
		}
	}
	return cmp.Diff(versions, known)
}

// phaseLog records the phases with which its observe method is called.
type phaseLog struct {
	mu     sync.Mutex
	phases []Phase
}

func (l *phaseLog) observe(s State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phases = append(l.phases, s.Phase)
}

func (l *phaseLog) all() []Phase {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.phases)
}

// eventually waits until diff returns "".
func eventually(t *testing.T, diff func() string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		if d := diff(); d != "" {
			return errors.New(d)
		}
		return nil
	})
}
