package typewatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

func newTestPool(s *server) *Pool {
	return NewPool(s.clients(), func(schema.GroupVersionResource) logr.Logger { return logr.Discard() }, func(schema.GroupVersionResource, State) {})
}

func wantDepth(depth Depth) Want { return Want{Spec: Spec{GVR: widgets, Depth: depth}} }

// witness is a sink that knows what it was told, and what must not be told then: nothing twice, nothing older than what
// it knows, no end of what it never saw. With Keys it is told no versions of what was.
type witness struct {
	t    testing.TB
	need *Need

	mu     sync.Mutex
	known  map[string]string // version by key; "?" where it was told none
	synced bool

	released, left atomic.Bool
}

func attachWitness(t testing.TB, n *Need) *witness {
	w := &witness{t: t, need: n, known: map[string]string{}}
	n.Attach(Sink{
		Known: func(keys []string) {
			for _, key := range keys {
				w.tell(key, func(version string, known bool) string {
					if known {
						t.Errorf("%s was known already", key)
					}
					obj, _ := n.Get(key)
					return versionOr(obj, "?")
				})
			}
		},
		Synced: func() { w.mu.Lock(); w.synced = true; w.mu.Unlock() },
		Changed: func(key string, old, now any) {
			w.tell(key, func(before string, known bool) string {
				synced := w.synced
				switch version := versionOr(now, "?"); {
				case !synced && now != nil:
					t.Errorf("%s changed before the sink was told of all", key)
				case w.released.Load():
					// It may not be told of what is new any more.
				case synced && known != (old != nil):
					t.Errorf("%s: %v before, known: %v", key, old, known)
				case now == nil:
					return ""
				case before != "?" && version != "?" && known && !newer(version, before):
					t.Errorf("%s went from version %s to %s", key, before, version)
				}
				return versionOr(now, "?")
			})
		},
	})
	return w
}

func versionOr(obj any, otherwise string) string {
	if obj == nil || versionOf(obj) == "" {
		return otherwise
	}
	return versionOf(obj)
}

func (w *witness) tell(key string, next func(version string, known bool) string) {
	if w.left.Load() {
		w.t.Errorf("told of %s after it left", key)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	version, known := w.known[key]
	if now := next(version, known); now == "" {
		delete(w.known, key)
	} else {
		w.known[key] = now
	}
}

// leave gives the need up and waits for what ends with it.
func (w *witness) leave() {
	w.released.Store(true)
	w.need.Release()
	w.need.Leave(nil)
	w.left.Store(true)
	<-w.need.Ended()
}

// knows compares what the sink was told with what there is.
func (w *witness) knows(versions map[string]string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := map[string]string{}
	for key, version := range w.known {
		known[key] = version
		if version == "?" {
			known[key] = versions[key]
		}
	}
	return cmp.Diff(versions, known)
}

// Who needs the same shares one watch, of the greatest depth that is needed, whoever comes and goes.
func TestS6_AWatchKeepsTheDeepestThatIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		p := newTestPool(s)
		p.Begin(context.Background())
		check := func(what string, depth Depth) {
			t.Helper()
			synctest.Wait()
			of := p.keepers(widgets)
			if len(of) != 1 || of[0].depth() != depth || s.isOpen() != 1 {
				t.Errorf("%s: %d watches, %d open", what, len(of), s.isOpen())
			}
		}
		keys := attachWitness(t, p.Acquire(wantDepth(Keys)))
		check("keys", Keys)
		full := attachWitness(t, p.Acquire(wantDepth(Full)))
		check("raised", Full)
		s.put("a")
		s.put("b")
		metadata := attachWitness(t, p.Acquire(wantDepth(Metadata)))
		check("less", Full)
		s.delete("a")
		synctest.Wait()
		full.leave()
		check("lowered", Metadata)
		s.put("b")
		s.put("c")
		synctest.Wait()
		for _, w := range []*witness{keys, metadata} {
			if diff := w.knows(s.versions()); diff != "" {
				t.Error(diff)
			}
		}
		if s.opened() > 2 {
			t.Errorf("%d watches were open at once", s.opened())
		}
		other := p.Acquire(Want{Spec: Spec{GVR: widgets, Namespace: "other", Depth: Keys}})
		transformed := p.Acquire(Want{Spec: Spec{GVR: widgets, Depth: Keys}, Transform: func(obj any) (any, error) { return obj, nil }})
		synctest.Wait()
		if s.isOpen() != 3 {
			t.Errorf("%d watches: another namespace and a transform need their own", s.isOpen())
		}
		for _, n := range []*Need{other, transformed} {
			n.Release()
			<-n.Ended()
		}
		keys.leave()
		check("the last but one", Metadata)
		metadata.leave()
		if s.isOpen() != 0 || p.Watches(widgets) != 0 {
			t.Errorf("%d watches are left, %d open", p.Watches(widgets), s.isOpen())
		}
		p.End()
	})
}

// However fast what is needed changes, and however long a watch takes to end, there are two at most.
func TestS6_TwoWatchesAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.linger = time.Minute
		s.put("a")
		p := newTestPool(s)
		p.Begin(context.Background())
		stays := attachWitness(t, p.Acquire(wantDepth(Metadata)))
		for range 5 {
			synctest.Wait()
			full := p.Acquire(wantDepth(Full))
			<-full.Synced()
			full.Release()
			again := p.Acquire(wantDepth(Full))
			synctest.Wait()
			again.Release()
		}
		time.Sleep(time.Hour)
		if s.opened() != 2 || s.isOpen() != 1 {
			t.Errorf("%d watches were open at once, %d are", s.opened(), s.isOpen())
		}
		stays.leave()
		p.End()
	})
}

// While a deeper watch cannot sync the one there is goes on, and says of itself how it stands; so does the other.
func TestS6_ADeeperWatchThatFailsTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		p := newTestPool(s)
		p.Begin(context.Background())
		keys := attachWitness(t, p.Acquire(wantDepth(Metadata)))
		synctest.Wait()
		s.refuseAll(Full, apierrors.NewForbidden(widgets.GroupResource(), "", errors.New("no right")))
		synctest.Wait()
		observed := Stopped
		want := wantDepth(Full)
		want.Observe = func(state State) { observed = state.Phase }
		full := attachWitness(t, p.Acquire(want))
		time.Sleep(time.Hour)
		s.put("b")
		synctest.Wait()
		if diff := keys.knows(s.versions()); diff != "" {
			t.Error(diff)
		}
		if isOver(full.need.Synced()) || full.need.State().Phase != Forbidden || observed != Forbidden || keys.need.State().Phase != Synced {
			t.Errorf("%+v, observed %s, %+v", full.need.State(), observed, keys.need.State())
		}
		s.refuseAll(Full, nil)
		<-full.need.Synced()
		synctest.Wait()
		if diff := full.knows(s.versions()); diff != "" || full.need.State().Phase != Synced {
			t.Errorf("%+v %s", full.need.State(), diff)
		}
		keys.leave()
		full.leave()
		p.End()
	})
}

// What a watch brings that was to take over, and is not needed any more, counts for nothing.
func TestS6_AWatchThatWasDroppedTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.put("a")
		p := newTestPool(s)
		p.Begin(context.Background())
		w := attachWitness(t, p.Acquire(wantDepth(Metadata)))
		synctest.Wait()
		s.refuseAll(Full, errors.New("later"))
		full := p.Acquire(wantDepth(Full))
		synctest.Wait()
		dropped := full.shared.coming.store
		full.Release()
		if err := dropped.Replace(nil, "100"); err != nil {
			t.Fatal(err)
		}
		s.put("b")
		synctest.Wait()
		if diff := w.knows(s.versions()); diff != "" {
			t.Error(diff)
		}
		w.leave()
		p.End()
	})
}

// A store that takes over waits until it has seen what was told, but not for ever.
func TestS6_NothingIsToldBackwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, needs := testFeed(Metadata)
		first, second := f.testStore(Metadata, nil), f.testStore(Full, nil)
		f.begin(first)
		e := &ear{}
		needs[0].Attach(e.sink())
		full := func(name, version string) any { return fullOf(object(name, version)) }
		replace := func(s *store, version string, items ...any) {
			if err := s.Replace(items, version); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(what string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, e.take()); diff != "" {
				t.Errorf("%s: %s", what, diff)
			}
		}
		replace(first, "10", object("a", "10"), object("b", "8"))
		expect("the first list", "known ns/a", "known ns/b", "synced")
		replace(second, "9", full("a", "9"), full("b", "8"))
		expect("a list from before what was told")
		if err := first.Add(object("late", "11")); err != nil {
			t.Fatal(err)
		}
		expect("what the first sees now is for the second to tell")
		if err := second.Update(full("a", "10")); err != nil {
			t.Fatal(err)
		}
		if err := second.Add(full("late", "11")); err != nil {
			t.Fatal(err)
		}
		expect("told once", "ns/late ->11")
		third := f.testStore(Metadata, nil)
		replace(third, "5", object("a", "5"))
		expect("one that lags")
		time.Sleep(catchUp)
		synctest.Wait()
		expect("for long enough", "ns/a 10>5", "ns/b 8>-", "ns/late 11>-")
	})
}

// Needs come, go and change depth while objects do: each hears of everything once and in order, and of nothing after it
// left.
func TestS6_NothingIsLostOrDoubledUnderChurn(t *testing.T) {
	s := newServer()
	p := newTestPool(s)
	p.Begin(context.Background())
	over := make(chan struct{})
	var writers, users sync.WaitGroup
	writers.Go(func() {
		for i := 0; !isOver(over); i++ {
			name := strconv.Itoa(rand.N(30))
			if rand.N(3) == 0 {
				s.delete(name)
			} else {
				s.put(name)
			}
			if i%50 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}
	})
	stays := attachWitness(t, p.Acquire(wantDepth(Metadata)))
	var takenOver atomic.Int64
	for range 4 {
		users.Go(func() {
			for range 300 {
				n := p.Acquire(wantDepth([]Depth{Keys, Metadata, Full}[rand.N(3)]))
				w := attachWitness(t, n)
				if rand.N(2) == 0 {
					<-n.Synced()
					takenOver.Add(1)
				}
				w.leave()
			}
		})
	}
	users.Wait()
	close(over)
	writers.Wait()
	deadline := time.Now().Add(10 * time.Second)
	for diff := stays.knows(s.versions()); diff != ""; diff = stays.knows(s.versions()) {
		if time.Now().After(deadline) {
			t.Fatal(diff)
		}
		time.Sleep(time.Millisecond)
	}
	stays.leave()
	p.End()
	if s.isOpen() != 0 || p.Watches(widgets) != 0 {
		t.Errorf("%d watches are left, %d open", p.Watches(widgets), s.isOpen())
	}
	if s.opened() > 2 {
		t.Errorf("%d watches were open at once", s.opened())
	}
	if takenOver.Load() == 0 {
		t.Error("nobody waited for its watch")
	}
	t.Logf("%d events", len(s.history))
}
