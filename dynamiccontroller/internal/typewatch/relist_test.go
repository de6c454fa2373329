package typewatch

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The API server closes a watch early after a change to the type's schema. The change itself produces no events.
func TestD1_WatchClosedEarlyIsFollowedByARelist(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		srv.put("b")
		s := p.Subscribe(options(Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		r.take()
		srv.setSpec("other")
		srv.put("c")
		time.Sleep(time.Second)
		srv.closeWatches()
		time.Sleep(time.Second)
		r.expect(t, "after the relist", "ns/a 1>1", "ns/b 2>2", "ns/c ->3")
		if phase := s.State().Phase; phase != Synced {
			t.Error(phase)
		}
		srv.put("d")
		synctest.Wait()
		r.expect(t, "an event", "ns/d ->4")
		time.Sleep(time.Hour)
		if lists := srv.listed(); len(lists) != 2 {
			t.Errorf("%d lists, want the first one and one relist", len(lists))
		}
		closeAndWait(s)
	})
}

// A list of many objects takes long. After a lost connection, changes are delivered without waiting for it.
func TestD1_CutWatchResumesAtOnceWhileAListTakesLong(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		srv.put("b")
		s := p.Subscribe(options(Full), nil)
		r := attachRecorder(s)
		synctest.Wait()
		r.take()
		srv.set(func() { srv.slow = time.Minute })
		time.Sleep(10 * time.Second)
		cut := time.Now()
		srv.closeWatches()
		srv.setSpec("other") // the list, but no event, shows the changes
		time.Sleep(10 * time.Second)
		srv.put("c")
		srv.delete("b")
		synctest.Wait()
		r.expect(t, "while the list is in progress", "ns/c ->3", "ns/b 2>-")
		if state := s.State(); state.Phase != Synced || state.Open.IsZero() || !state.ListingSince.Equal(cut) {
			t.Errorf("the state is %+v", state)
		}
		time.Sleep(time.Minute)
		r.expect(t, "after the list", "ns/a 1>1")
		if state := s.State(); state.Phase != Synced || !state.ListingSince.IsZero() {
			t.Errorf("the state is %+v", state)
		}
		time.Sleep(time.Hour)
		if lists := srv.listed(); len(lists) != 2 {
			t.Errorf("%d lists, want the first one and one relist", len(lists))
		}
		closeAndWait(s)
	})
}

// interleaving is a test in which lists take long, watches lag behind, and connections are cut at random.
type interleaving struct {
	*server
	random *rand.Rand
	t      *testing.T
	sub    *Subscription

	mu       sync.Mutex
	versions map[string]int // the newest version of each object that was delivered, deletions included
}

func (i *interleaving) changed(c Change) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if c.New == nil {
		return
	}
	version, err := strconv.Atoi(c.New.Record.GetResourceVersion())
	if err != nil || version < i.versions[c.Key] {
		i.t.Errorf("%s: version %d was delivered after version %d", c.Key, version, i.versions[c.Key])
	}
	i.versions[c.Key] = version
}

// setSchema is like setSpec, and also changes the events that later watches receive.
func (i *interleaving) setSchema(spec string) {
	i.setSpec(spec)
	i.set(func() {
		for n, event := range i.history {
			object := event.Object.(*unstructured.Unstructured).DeepCopy()
			object.Object["spec"] = spec
			i.history[n].Object = object
		}
	})
}

func (i *interleaving) step() {
	name := string(rune('a' + i.random.IntN(5)))
	switch i.random.IntN(10) {
	case 0, 1, 2:
		i.put(name)
	case 3, 4:
		i.delete(name)
	case 5:
		if i.sub.State().Open.IsZero() { // otherwise, an API server would close the next watch
			return
		}
		i.setSchema(fmt.Sprint(i.random.IntN(100)))
		i.closeWatches()
	case 6:
		i.closeWatches()
	case 7:
		i.set(func() { i.slow = time.Duration(i.random.IntN(5)) * time.Second })
	case 8:
		paused := i.random.IntN(2) == 0
		i.set(func() { i.paused[Full], i.paused[Metadata] = paused, paused })
	default:
		i.bookmark()
	}
	time.Sleep(time.Duration(i.random.IntN(3000)) * time.Millisecond)
}

// Whatever the order of events and lists, the store reflects the server in the end, and no object goes back to an older
// version.
func TestD1_RandomInterleavingsOfWatchesAndRelists(t *testing.T) {
	for seed := range uint64(300) {
		inBubble(t, func(t *testing.T, srv *server, p *Pool) {
			i := &interleaving{server: srv, random: rand.New(rand.NewPCG(seed, 0)), t: t, versions: map[string]int{}}
			projection := []Projection{Full, Metadata}[seed%2]
			srv.put("a") // the version of an empty list would be 0, from which a watch is not resumed
			s := p.Subscribe(options(projection), nil)
			i.sub = s
			s.Attach(EventHandler{
				Known: func([]*Object) {}, Synced: func() {}, Changed: i.changed, Lost: func() {},
			})
			for range 60 {
				i.step()
			}
			srv.set(func() { srv.paused[Full], srv.paused[Metadata] = false, false })
			time.Sleep(20 * time.Minute)
			got := map[string]string{}
			for _, record := range s.View().Store().All() {
				got[record.Key()] = record.GetResourceVersion()
				if projection != Full {
					continue
				}
				decoded, err := record.Decode(Full)
				name := strings.TrimPrefix(record.Key(), "ns/")
				want := srv.objects[name].Object["spec"]
				if spec := decoded.(*unstructured.Unstructured).Object["spec"]; err != nil || spec != want {
					t.Errorf("seed %d: %s has the spec %v, want %v; %v", seed, name, spec, want, err)
				}
			}
			if diff := cmp.Diff(srv.versions(), got); diff != "" {
				t.Errorf("seed %d: %s", seed, diff)
			}
			closeAndWait(s)
		})
	}
}

func TestWatch_ResumesWithoutARelistAfterATimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		s := p.Subscribe(options(Full), nil)
		for range 100 {
			time.Sleep(time.Minute)
			srv.put("a")
		}
		if lists := srv.listed(); len(lists) != 1 {
			t.Errorf("got %d lists, want only the first", len(lists))
		}
		closeAndWait(s)
	})
}

// If connections are lost repeatedly, not every lost connection causes a relist. A schema change is still detected.
func TestRelist_IsLimitedForEachType(t *testing.T) {
	const burst, period = 10, 5 * time.Minute
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		s := p.Subscribe(options(Full), nil)
		r := attachRecorder(s)
		began := time.Now()
		for range 120 {
			time.Sleep(30 * time.Second)
			srv.put("a")
			srv.closeWatches()
		}
		most := 1 + burst + int(time.Since(began)/period)
		if lists := len(srv.listed()); lists > most || lists < burst {
			t.Errorf("%d lists, want at most %d", lists, most)
		}
		time.Sleep(time.Second)
		if events := r.take(); len(events) != len([]string{"known", "synced"})+120 {
			t.Errorf("relists of unchanged objects were delivered: %v", events)
		}
		srv.setSpec("other")
		srv.closeWatches()
		time.Sleep(period + time.Second)
		r.expect(t, "after the schema changed", "ns/a 121>121")
		closeAndWait(s)
	})
}

// All watches of a controller can share one connection. If it is lost, the relists of all types must not be sent at the
// same time, and events must not wait for the relists.
func TestRelist_IsLimitedAcrossTypes(t *testing.T) {
	const types, perSecond = 100, 20
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		var subscriptions []*Subscription
		var recorders []*recorder
		for i := range types {
			o := options(Full)
			o.GVR.Resource = fmt.Sprint("widgets", i)
			s := p.Subscribe(o, nil)
			subscriptions, recorders = append(subscriptions, s), append(recorders, attachRecorder(s))
		}
		time.Sleep(2 * time.Second)
		first := len(srv.listed())
		srv.closeWatches()
		time.Sleep(20 * time.Millisecond)
		if relists := len(srv.listed()) - first; relists > perSecond {
			t.Errorf("%d relists at once, want at most %d", relists, perSecond)
		}
		for _, r := range recorders {
			r.take()
		}
		srv.setSpec("other")
		srv.put("b")
		synctest.Wait()
		for _, r := range recorders {
			r.expect(t, "while the relist is pending", "ns/b ->2")
		}
		before := len(srv.listed())
		for range types / perSecond {
			time.Sleep(time.Second)
			now := len(srv.listed())
			if now-before > perSecond {
				t.Errorf("%d relists within a second, want at most %d", now-before, perSecond)
			}
			before = now
		}
		time.Sleep(time.Hour)
		if relists := len(srv.listed()) - first; relists != types {
			t.Errorf("%d relists, want one for each of %d types", relists, types)
		}
		for _, s := range subscriptions {
			closeAndWait(s)
		}
	})
}

// Relists are needed only for custom resources, because only their schemas can change. Their groups contain at least
// one dot.
func TestRelist_IsSkippedForBuiltInTypes(t *testing.T) {
	for _, group := range []string{"", "apps", "batch"} {
		t.Run(group, func(t *testing.T) {
			inBubble(t, func(t *testing.T, srv *server, p *Pool) {
				srv.put("a")
				o := options(Full)
				o.GVR = schema.GroupVersionResource{Group: group, Version: "v1", Resource: "things"}
				s := p.Subscribe(o, nil)
				r := attachRecorder(s)
				synctest.Wait()
				r.take()
				for range 20 {
					time.Sleep(10 * time.Second)
					srv.closeWatches()
					srv.put("b")
				}
				time.Sleep(time.Second)
				if events := r.take(); len(events) != 20 {
					t.Errorf("%d of 20 events: %v", len(events), events)
				}
				if lists := srv.relists(0); len(lists) != 1 {
					t.Errorf("%d lists, want only the first", len(lists))
				}
				closeAndWait(s)
			})
		})
	}
}
