package listwatch

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// model is an API server with the semantics of lists, watches and streaming lists. Each of its clients is counted.
type model struct {
	streams bool

	mu        sync.Mutex // guards the fields below
	version   int
	objects   map[string]int
	history   []watch.Event
	compacted int   // watches from an older version get 410
	listErr   error // refuses lists and streaming lists
	watchErr  error // refuses watches
	changed   chan struct{}
	streamsOf map[*modelStream]bool
}

func newModel(streams bool) *model {
	return &model{
		streams: streams, objects: map[string]int{}, changed: make(chan struct{}), streamsOf: map[*modelStream]bool{},
	}
}

// do changes the server's state, and wakes its watches.
func (m *model) do(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *model) putLocked(name string) {
	eventType := watch.Modified
	if _, exists := m.objects[name]; !exists {
		eventType = watch.Added
	}
	m.version++
	m.objects[name] = m.version
	m.history = append(m.history, event(eventType, name, strconv.Itoa(m.version)))
}

func (m *model) deleteLocked(name string) {
	if _, exists := m.objects[name]; exists {
		m.version++
		delete(m.objects, name)
		m.history = append(m.history, event(watch.Deleted, name, strconv.Itoa(m.version)))
	}
}

// endLocked ends all watches, after an event if it has a type.
func (m *model) endLocked(last watch.Event) {
	for s := range m.streamsOf {
		s.last, s.ended = last, true
	}
}

func (m *model) state() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	state := map[string]string{}
	for name, version := range m.objects {
		state[name] = strconv.Itoa(version)
	}
	return state
}

// modelClient counts the requests of one client.
type modelClient struct {
	*model
	requests int
}

func (c *modelClient) IsWatchListSemanticsUnSupported() bool { return !c.streams }

func (c *modelClient) List(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	if wanted, _ := strconv.Atoi(o.ResourceVersion); wanted > c.version {
		return nil, tooLargeError()
	}
	if c.listErr != nil {
		return nil, c.listErr
	}
	list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(c.version)}}
	for name, version := range c.objects {
		list.Items = append(list.Items, *thing(name, strconv.Itoa(version)))
	}
	return list, nil
}

func (c *modelClient) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	initial := ptr.Deref(o.SendInitialEvents, false)
	from, _ := strconv.Atoi(o.ResourceVersion)
	switch {
	case initial && c.listErr != nil:
		return nil, c.listErr
	case !initial && c.watchErr != nil:
		return nil, c.watchErr
	case !initial && from < c.compacted:
		return nil, apierrors.NewResourceExpired("too old resource version")
	}
	s := &modelStream{model: c.model, from: from, results: make(chan watch.Event)}
	if initial {
		for name, version := range c.objects {
			s.initial = append(s.initial, event(watch.Added, name, strconv.Itoa(version)))
		}
		end := event(watch.Bookmark, "", strconv.Itoa(c.version))
		end.Object.(*metav1.PartialObjectMetadata).Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		s.initial, s.from = append(s.initial, end), c.version
	}
	c.streamsOf[s] = true
	ctx, s.Interface = contextOf(ctx, s.results)
	go s.run(ctx, time.Duration(*o.TimeoutSeconds)*time.Second)
	return s.Interface, nil
}

// contextOf returns a watch and its context, which Stop cancels.
func contextOf(ctx context.Context, results chan watch.Event) (context.Context, watch.Interface) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, stoppable{results, cancel}
}

type stoppable struct {
	results chan watch.Event
	cancel  context.CancelFunc
}

func (s stoppable) Stop()                          { s.cancel() }
func (s stoppable) ResultChan() <-chan watch.Event { return s.results }

type modelStream struct {
	watch.Interface
	model   *model
	from    int
	initial []watch.Event
	results chan watch.Event
	last    watch.Event // guarded by the model's lock
	ended   bool        // guarded by the model's lock
}

func (s *modelStream) run(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer close(s.results)
	defer s.model.do(func() {})
	defer func() {
		s.model.mu.Lock()
		defer s.model.mu.Unlock()
		delete(s.model.streamsOf, s)
	}()
	send := func(e watch.Event) bool {
		select {
		case s.results <- *e.DeepCopy():
			return true
		case <-ctx.Done():
			return false
		}
	}
	for _, e := range s.initial {
		if !send(e) {
			return
		}
	}
	for {
		s.model.mu.Lock()
		events, changed, last, ended := s.model.history[s.from:], s.model.changed, s.last, s.ended
		s.model.mu.Unlock()
		for _, e := range events {
			if !send(e) {
				return
			}
			s.from++
		}
		if ended {
			if last.Type != "" {
				send(last)
			}
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// reflectorClient makes a modelClient usable for a cache.Reflector.
type reflectorClient struct {
	client              *modelClient
	cache.ListerWatcher // nil; provides List and Watch, which the reflector does not call
}

func (c reflectorClient) IsWatchListSemanticsUnSupported() bool { return !c.client.streams }

func (c reflectorClient) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return c.client.List(ctx, o)
}

func (c reflectorClient) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.client.Watch(ctx, o)
}

// runReflector runs a cache.Reflector as the engine did before it had a Loop.
func runReflector(ctx context.Context, client *modelClient, store cache.Store) {
	log := logr.Discard()
	r := cache.NewReflectorWithOptions(reflectorClient{client: client}, nil, store, cache.ReflectorOptions{
		Name: "test", Logger: &log,
		Backoff: &wait.Backoff{Duration: 20 * time.Millisecond, Cap: 10 * time.Second, Steps: 12, Factor: 2, Jitter: 0.5},
	})
	newRetry := func() wait.DelayFunc {
		backoff := wait.Backoff{Duration: 10 * time.Millisecond, Cap: 30 * time.Second, Steps: 20, Factor: 2, Jitter: 0.2}
		return backoff.DelayFunc()
	}
	retry := newRetry()
	for ctx.Err() == nil {
		began := time.Now()
		_ = r.ListAndWatchWithContext(ctx)
		if time.Since(began) > time.Minute {
			retry = newRetry()
		}
		select {
		case <-time.After(retry()):
		case <-ctx.Done():
		}
	}
}

// misfortunes are what can happen to the server, apart from changes to its objects.
func (m *model) misfortuneLocked(random *rand.Rand) {
	errs := []error{refusal(403, 0), refusal(404, 0), refusal(429, time.Second), refusal(500, 0), refusal(503, 0), refused}
	errorEvent := func(code int) watch.Event {
		status := refusal(code, 0).ErrStatus
		return watch.Event{Type: watch.Error, Object: &status}
	}
	switch random.IntN(8) {
	case 0:
		m.endLocked(watch.Event{})
	case 1:
		m.endLocked(errorEvent(http.StatusGone))
	case 2:
		m.endLocked(errorEvent(http.StatusInternalServerError))
	case 3:
		m.compacted = m.version
		m.endLocked(watch.Event{})
	case 4:
		m.listErr = errs[random.IntN(len(errs))]
		m.endLocked(watch.Event{})
	case 5:
		m.watchErr = errs[random.IntN(len(errs))]
		m.endLocked(watch.Event{})
	default:
		m.listErr, m.watchErr = nil, nil
	}
}

// FuzzLoop_EqualsReflector compares the Loop with a cache.Reflector. After random changes, errors and cuts, both have
// the server's objects.
func FuzzLoop_EqualsReflector(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed, seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, streams bool) {
		synctest.Test(t, func(t *testing.T) { compareWithReflector(t, rand.New(rand.NewPCG(seed, 0)), streams) })
	})
}

// The Loop does not send more requests than a reflector. In a single run, the numbers depend on the random delays.
func TestLoop_SendsNoMoreRequestsThanAReflector(t *testing.T) {
	ours, theirs := 0, 0
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			loop, reflector := compareWithReflector(t, rand.New(rand.NewPCG(seed, 1)), seed%2 == 0)
			ours, theirs = ours+loop, theirs+reflector
		})
	}
	t.Logf("%d requests, the reflector sent %d", ours, theirs)
	if ours > theirs {
		t.Errorf("%d requests, the reflector sent %d", ours, theirs)
	}
}

// compareWithReflector returns the numbers of requests.
func compareWithReflector(t *testing.T, random *rand.Rand, streams bool) (loop, reflector int) {
	t.Helper()
	m := newModel(streams)
	ours, theirs := &modelClient{model: m}, &modelClient{model: m}
	store, reference := &things{}, cache.NewStore(cache.MetaNamespaceKeyFunc)
	l := NewLoop(NewRequests(ours), store, Options{Log: logr.Discard(), GVR: widgetsOf["built-in"]})
	stop := start(l)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runReflector(ctx, theirs, reference)
	}()
	for range 80 {
		time.Sleep(time.Duration(random.Int64N(int64(20 * time.Second))))
		name := string(rune('a' + random.IntN(6)))
		switch random.IntN(6) {
		case 0:
			m.do(func() { m.misfortuneLocked(random) })
		case 1:
			m.do(func() { m.deleteLocked(name) })
		default:
			m.do(func() { m.putLocked(name) })
		}
	}
	m.do(func() { m.listErr, m.watchErr = nil, nil })
	time.Sleep(2 * time.Minute)
	m.do(func() { m.putLocked("last") })
	synctest.Wait()
	theirObjects := map[string]string{}
	for _, object := range reference.List() {
		o := object.(*metav1.PartialObjectMetadata)
		theirObjects[o.Name] = o.ResourceVersion
	}
	if diff := cmp.Diff(m.state(), maps.Clone(store.versions)); diff != "" {
		t.Errorf("the objects of the loop: %s", diff)
	}
	if diff := cmp.Diff(theirObjects, store.versions); diff != "" {
		t.Errorf("the reflector and the loop differ: %s", diff)
	}
	if state := l.State(); state.Phase != Synced {
		t.Errorf("%+v", state)
	}
	stop()
	cancel()
	<-ended
	return ours.requests, theirs.requests
}
