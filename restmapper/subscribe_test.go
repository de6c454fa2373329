package restmapper

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
)

func versionsOf(mappings []*meta.RESTMapping) []string {
	versions := []string{}
	for _, m := range mappings {
		versions = append(versions, m.Resource.Version)
	}
	return versions
}

func describeChange(c Change) string {
	return fmt.Sprintf("%s %s %s -> %s", c.Type, c.Kind.Kind, versionsOf(c.Old), versionsOf(c.New))
}

func TestM4_SubscriberReceivesChangesInOrder(t *testing.T) {
	r := run(t)
	r.api.setCRD(widget.Group, widget.Kind, "v1")
	r.waitFor(widget)
	received := make(chan string, 100)
	cancel := r.Subscribe(func(c Change) {
		if c.Kind.Group != widget.Group {
			return
		}
		mapping, err := r.RESTMapping(c.Kind)
		if c.Type != Removed && (err != nil || mapping.Resource.Version != c.New[0].Resource.Version) {
			t.Errorf("received %v, but lookups return %v, %v", c.New[0], mapping, err)
		}
		received <- describeChange(c)
	})
	defer cancel()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-received:
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		case <-time.After(testDeadline):
			t.Fatalf("not received: %s", want)
		}
	}
	expect("Added Widget [] -> [v1]")
	r.api.setCRD(widget.Group, widget.Kind, "v1", "v2")
	expect("Changed Widget [v1] -> [v2 v1]")
	r.api.setCRD(widget.Group, "Gadget", "v1")
	expect("Added Gadget [] -> [v1]")
	r.api.deleteCRD(widget.Group, widget.Kind)
	expect("Removed Widget [v2 v1] -> []")
	<-cancel()
	r.api.deleteCRD(widget.Group, "Gadget")
	r.eventually("the kind is not mapped", r.hasNot(schema.GroupKind{Group: widget.Group, Kind: "Gadget"}))
	r.stop()
	if len(received) > 0 {
		t.Error("received after cancel:", <-received)
	}
}

func TestM4_RunWaitsForSubscribersAndCallsNoneAfterwards(t *testing.T) {
	inMemory(t, func(r *running) {
		r.start()
		r.waitFor(pod)
		called, release := make(chan struct{}, 100), make(chan struct{})
		defer r.Subscribe(func(Change) {
			called <- struct{}{}
			<-release
		})()
		<-called
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			r.stop()
		}()
		time.Sleep(time.Minute)
		select {
		case <-stopped:
			t.Error("Run has returned during a call")
		default:
		}
		close(release)
		<-stopped
		for len(called) > 0 {
			<-called
		}
		r.setCRD("widgets.example.com", &customResourceDefinition{})
		synctest.Wait()
		if len(called) > 0 {
			t.Error("the subscriber has been called after Run returned")
		}
	})
}

// A list can contain a different resource or scope for a kind than the previous list did.
func TestM4_SubscriberReceivesAChangedPluralOrScope(t *testing.T) {
	old := &resource{name: "widgets", singular: "widget", kind: "Widget", namespaced: true}
	for name, now := range map[string]*resource{
		"another plural": {name: "widgetses", singular: "widget", kind: "Widget", namespaced: true},
		"another scope":  {name: "widgets", singular: "widget", kind: "Widget"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newCatalog()
			crdOf := func(r *resource) *crd {
				return &crd{group: "example.com", established: true, versions: []string{"v1"}, resource: r}
			}
			w.setCRD(old.name, crdOf(old), touchedGroups{})
			before := w.group("example.com")
			groups := touchedGroups{}
			w.setCRD(old.name, nil, groups)
			w.setCRD(now.name, crdOf(now), groups)
			changes := difference(before, w.group("example.com"), groups["example.com"])
			if len(changes) != 1 || changes[0].kind != widget ||
				changes[0].old[0].Resource.Resource != old.name || changes[0].now[0].Resource.Resource != now.name ||
				changes[0].old[0].Scope != meta.RESTScopeNamespace ||
				changes[0].now[0].Scope.Name() == meta.RESTScopeNameNamespace != now.namespaced {
				t.Errorf("got changes %+v", changes)
			}
		})
	}
}

// mappingsOf returns the mappings of a kind in one version. It returns an empty list for version 0.
func mappingsOf(kind string, version int) []*meta.RESTMapping {
	if version == 0 {
		return nil
	}
	gv := schema.GroupVersion{Group: "example.com", Version: fmt.Sprint("v", version)}
	return []*meta.RESTMapping{{
		Resource: gv.WithResource("things"), GroupVersionKind: gv.WithKind(kind), Scope: meta.RESTScopeRoot,
	}}
}

func change(kind string, old, now int) []pending {
	gk := schema.GroupKind{Group: "example.com", Kind: kind}
	return []pending{{kind: gk, old: mappingsOf(kind, old), now: mappingsOf(kind, now)}}
}

func inNotifier(t *testing.T, test func(t *testing.T, n *notifier, l *logs)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &logs{}
		n := &notifier{log: l.logger()}
		n.start()
		defer n.stop()
		test(t, n, l)
	})
}

func TestM4_SlowSubscriberReceivesMergedChanges(t *testing.T) {
	inNotifier(t, func(t *testing.T, n *notifier, _ *logs) {
		release, received := make(chan struct{}), []string{}
		n.subscribe(func(c Change) {
			received = append(received, describeChange(c))
			<-release
		}, change("Known", 0, 1))
		synctest.Wait() // the first call is in progress
		for _, c := range [][]pending{
			change("Known", 1, 2), change("Temporary", 0, 1), change("New", 0, 1),
			change("Known", 2, 3), change("Temporary", 1, 0), change("New", 1, 2),
		} {
			n.notify(c)
		}
		close(release)
		synctest.Wait()
		want := []string{"Added Known [] -> [v1]", "Changed Known [v1] -> [v3]", "Added New [] -> [v2]"}
		if !slices.Equal(received, want) {
			t.Errorf("got %q, want %q", received, want)
		}
	})
}

func TestM4_CancelChannelIsClosedAfterTheCall(t *testing.T) {
	inNotifier(t, func(t *testing.T, n *notifier, _ *logs) {
		release, calls := make(chan struct{}), 0
		s := n.subscribe(func(Change) {
			<-release
			calls++
		}, append(change("A", 0, 1), change("B", 0, 1)...))
		synctest.Wait()
		done := n.cancel(s)
		synctest.Wait()
		select {
		case <-done:
			t.Error("the channel is closed during a call")
		default:
		}
		close(release)
		<-done
		if calls != 1 {
			t.Errorf("%d calls, want 1", calls)
		}
		<-n.cancel(s) // again
	})
}

func TestM4_SubscribersCanCancelThemselvesAndEachOther(t *testing.T) {
	inNotifier(t, func(t *testing.T, n *notifier, _ *logs) {
		var a, b *subscription
		var calls, remaining atomic.Int64
		remaining.Store(2)
		inCall := make(chan struct{})
		cancelBoth := func(Change) {
			if remaining.Add(-1) == 0 {
				close(inCall)
			}
			<-inCall // both subscribers are being called
			calls.Add(1)
			n.cancel(a)
			n.cancel(b)
		}
		a, b = n.subscribe(cancelBoth, nil), n.subscribe(cancelBoth, nil)
		n.notify(change("A", 0, 1))
		n.notify(change("B", 0, 1))
		synctest.Wait()
		if calls.Load() != 2 || !n.isEmpty() {
			t.Errorf("%d calls, empty: %v", calls.Load(), n.isEmpty())
		}
	})
}

func TestM4_SubscriptionSurvivesPanicsAndGoexit(t *testing.T) {
	for name, fail := range map[string]func(){
		"panic": func() { panic("broken subscriber") }, "Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			inNotifier(t, func(t *testing.T, n *notifier, l *logs) {
				var received []string
				s := n.subscribe(func(c Change) {
					received = append(received, c.Kind.Kind)
					if c.Kind.Kind == "A" {
						fail()
					}
				}, append(change("A", 0, 1), change("B", 0, 1)...))
				synctest.Wait()
				if !slices.Equal(received, []string{"A", "B"}) {
					t.Errorf("received %v", received)
				}
				logged := l.count("Subscriber panicked", "broken subscriber", "A.example.com")
				if want := map[string]int{"panic": 1}[name]; logged != want {
					t.Errorf("the panic was logged %d times, want %d", logged, want)
				}
				<-n.cancel(s)
			})
		})
	}
}

func TestM4_CallsAreMadeOnlyWhileTheMapperRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n notifier
		calls := 0
		n.subscribe(func(Change) { calls++ }, change("A", 0, 1))
		synctest.Wait()
		if calls != 0 {
			t.Error("called before the start")
		}
		n.start()
		synctest.Wait()
		n.stop()
		n.notify(change("A", 1, 2))
		synctest.Wait()
		if calls != 1 {
			t.Errorf("%d calls, want 1", calls)
		}
		n.start()
		synctest.Wait()
		n.stop()
		if calls != 2 {
			t.Errorf("%d calls, want 2", calls)
		}
	})
}

func TestM4_SubscriberReceivesConsistentChanges(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) [2]int {
			return [2]int{rapid.IntRange(0, 3).Draw(r, "kind"), rapid.IntRange(0, 2).Draw(r, "version")}
		}), 1, 60).Draw(r, "steps")
		var n notifier
		n.start()
		defer n.stop()
		state, received := map[string]int{}, map[string][]*meta.RESTMapping{}
		var mu sync.Mutex
		s := n.subscribe(func(c Change) {
			mu.Lock()
			defer mu.Unlock()
			if last := received[c.Kind.Kind]; !sameMappings(last, c.Old) || sameMappings(c.Old, c.New) {
				r.Errorf("received %v -> %v, the last state was %v", c.Old, c.New, last)
			}
			received[c.Kind.Kind] = c.New
		}, nil)
		for _, step := range steps {
			kind := fmt.Sprint("Kind", step[0])
			n.notify(change(kind, state[kind], step[1]))
			state[kind] = step[1]
		}
		for {
			n.mu.Lock()
			busy := s.busy
			n.mu.Unlock()
			if busy == nil {
				break
			}
			<-busy
		}
		for kind, version := range state {
			if !sameMappings(received[kind], mappingsOf(kind, version)) {
				r.Errorf("%s: received %v, want v%d", kind, received[kind], version)
			}
		}
	})
}
