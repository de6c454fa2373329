package typewatch

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Subscriptions are added, closed and replaced while objects change. Each handler is called once for each change, in
// order, and is not called after it was detached.
func TestS6_NoChangeIsLostOrDuplicatedUnderChurn(t *testing.T) {
	srv := newServer()
	p := newTestPool(srv)
	stop := p.Start()
	over := make(chan struct{})
	var writers, users sync.WaitGroup
	writers.Go(func() { srv.churn(over) })
	anyOptions := func() Options {
		o := options([]Projection{Keys, Metadata, Full}[rand.N(3)])
		o.Blocking = rand.N(2) == 0
		return o
	}
	stays := attachModel(t, p.Subscribe(options(Metadata), nil))
	var synced, replaced atomic.Int64
	for range 4 {
		users.Go(func() {
			for range 100 {
				m := attachModel(t, p.Subscribe(anyOptions(), nil))
				if rand.N(2) == 0 {
					<-m.subscription.Synced()
					synced.Add(1)
				}
				if rand.N(2) == 0 {
					m.subscription.Replace(anyOptions(), func() { replaced.Add(1) }, noop)
				}
				m.close()
			}
		})
	}
	users.Wait()
	close(over)
	writers.Wait()
	eventually(t, func() string { return stays.diff(srv.versions()) })
	stays.close()
	stop()
	if srv.openWatches() != 0 || p.Watches(widgets) != 0 {
		t.Errorf("%d watches are left in the pool, and %d are open", p.Watches(widgets), srv.openWatches())
	}
	if synced.Load() == 0 || replaced.Load() == 0 {
		t.Errorf("%d subscriptions have synced, %d were replaced", synced.Load(), replaced.Load())
	}
}

// churn creates, changes and deletes objects until over is closed.
func (s *server) churn(over <-chan struct{}) {
	for i := 0; !IsClosed(over); i++ {
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
}

// stress holds the state of TestStress: a server and a pool with concurrent operations.
type stress struct {
	t                   *testing.T
	srv                 *server
	pool                *Pool
	over                chan struct{}
	background          sync.WaitGroup
	replaced, cancelled atomic.Int64
}

const stressObjects = 20

// TestStress concurrently changes objects, makes watches fail, lag and close, delivers type events, starts and stops
// the pool, and creates, attaches, replaces and closes subscriptions. Each handler is called once for each difference,
// and no view goes back to an older version. At the end, all goroutines have exited and the last subscription's store
// matches the server's state.
func TestStress(t *testing.T) {
	srv := newServer()
	s := &stress{t: t, srv: srv, pool: newTestPool(srv), over: make(chan struct{})}
	stop := s.pool.Start()
	s.disturb()
	var users sync.WaitGroup
	for range 4 {
		users.Go(func() {
			for range 60 {
				s.subscribe()
			}
		})
	}
	last := &model{t: t, restarts: true, subscription: s.pool.Subscribe(options(Metadata), nil)}
	last.attach()
	for range 20 {
		time.Sleep(10 * time.Millisecond)
		stop()
		stop = s.pool.Start()
	}
	users.Wait()
	close(s.over)
	s.background.Wait()
	s.pool.Appeared(widgets)
	eventually(t, func() string { return last.diff(srv.versions()) })
	last.close()
	stop()
	if srv.openWatches() != 0 || s.pool.Watches(widgets) != 0 || len(s.pool.Running()) != 0 {
		t.Errorf("%d watches are left in the pool, and %d are open", s.pool.Watches(widgets), srv.openWatches())
	}
	if s.replaced.Load() == 0 || s.cancelled.Load() == 0 {
		t.Errorf("got %d replacements and %d cancelled ones, want some of each", s.replaced.Load(), s.cancelled.Load())
	}
	t.Logf("%d replacements, %d cancelled, %d events", s.replaced.Load(), s.cancelled.Load(), len(srv.history))
}

func (s *stress) repeat(pause time.Duration, f func(i int)) {
	s.background.Go(func() {
		for i := 0; !IsClosed(s.over); i++ {
			f(i)
			time.Sleep(pause)
		}
	})
}

// disturb runs all operations except those on subscriptions until over is closed.
func (s *stress) disturb() {
	srv, p := s.srv, s.pool
	s.repeat(20*time.Microsecond, func(i int) {
		if name := strconv.Itoa(rand.N(stressObjects)); i%3 == 0 {
			srv.delete(name)
		} else {
			srv.put(name)
		}
	})
	s.repeat(3*time.Millisecond, func(int) { p.Vanished(widgets) })
	s.repeat(2*time.Millisecond, func(int) { srv.bookmark(); p.Appeared(widgets) })
	s.repeat(5*time.Millisecond, func(int) { srv.closeWatches() })
	s.repeat(time.Millisecond, func(i int) {
		projection := []Projection{Metadata, Full}[rand.N(2)]
		srv.set(func() { srv.refuseLists[projection], srv.paused[projection] = errors.New("on purpose"), i%2 == 0 })
		time.Sleep(time.Millisecond)
		srv.set(func() { clear(srv.refuseLists); clear(srv.paused) })
	})
}

func (s *stress) options() Options {
	o := options([]Projection{Keys, Metadata, Full}[rand.N(3)])
	o.Blocking = rand.N(2) == 0
	switch rand.N(6) {
	case 0:
		o.Namespaces = "ns"
	case 1:
		o.Namespaces = "ns,other"
	case 2:
		o.Transform = unchanged
	}
	return o
}

// subscribe creates a subscription, replaces it up to four times and closes it.
func (s *stress) subscribe() {
	m := &model{t: s.t, restarts: true, subscription: s.pool.Subscribe(s.options(), func(State) {})}
	m.attach()
	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() { readForwards(s.t, m.subscription, done) })
	for range rand.N(5) {
		s.replace(m)
	}
	if rand.N(2) == 0 {
		m.detach()
	}
	closeAndWait(m.subscription)
	m.detached.Store(true)
	close(done)
	reader.Wait()
}

func (s *stress) replace(m *model) {
	var calls atomic.Int64
	var cancelled atomic.Bool
	m.subscription.Replace(s.options(), func() {
		s.replaced.Add(1)
		if calls.Add(1) > 1 {
			s.t.Error("onReplace was called twice")
		}
		if cancelled.Load() {
			s.t.Error("onReplace was called after CancelReplace")
		}
	}, noop)
	if rand.N(4) == 0 {
		m.subscription.CancelReplace()
		cancelled.Store(true)
		s.cancelled.Add(1 - calls.Load())
	}
	switch rand.N(3) {
	case 0:
		m.detach()
		m.attach()
	case 1:
		time.Sleep(time.Duration(rand.N(3000)) * time.Microsecond)
	}
}

// readForwards reads until done is closed. It checks that an object's version never decreases, even if the object is
// deleted and created again. A watch that has not been listed completely is not read, because a subscription leaves it
// for any other watch.
func readForwards(t *testing.T, s *Subscription, done <-chan struct{}) {
	newest := map[string]int{}
	for ; !IsClosed(done); time.Sleep(50 * time.Microsecond) {
		key := "ns/" + strconv.Itoa(rand.N(stressObjects))
		view := s.View()
		if !view.contents.everListed.Load() {
			continue
		}
		obj, known := view.Store().Get(key)
		if !known || obj.GetResourceVersion() == "" {
			continue
		}
		if version := number(obj.GetResourceVersion()); version < newest[key] {
			t.Errorf("the view of %s went from version %d to %d", key, newest[key], version)
		} else {
			newest[key] = version
		}
	}
}
