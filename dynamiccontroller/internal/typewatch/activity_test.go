package typewatch

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/internal/shards"
)

// watchesAre compares the number of watches in the pool, of open watches and of lists so far.
func watchesAre(t *testing.T, what string, srv *server, p *Pool, watches, lists int) {
	t.Helper()
	synctest.Wait()
	if n, open, listed := p.Watches(widgets), srv.openWatches(), len(srv.listed()); n != watches || open != watches ||
		listed != lists {
		t.Errorf("%s: %d watches, %d of them open, and %d lists; want %d and %d", what, n, open, listed, watches, lists)
	}
}

func TestActivity_InactiveSubscriptionHasNoWatchAndNoObjects(t *testing.T) {
	for name, o := range map[string]Options{
		"keys": options(Keys), "objects": options(Full), "with a transform": transformed(Full),
		"with user code": blocking(options(Metadata)),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, srv *server, p *Pool) { testInactive(t, srv, p, o) })
		})
	}
}

func testInactive(t *testing.T, srv *server, p *Pool, o Options) {
	srv.put("a")
	a := p.NewActivity(false, shards.Shard{})
	s := a.Subscribe(o, nil)
	r := attachRecorder(s)
	watchesAre(t, "before", srv, p, 0, 0)
	for round := range 3 {
		a.Set(true, shards.Shard{})
		watchesAre(t, "active", srv, p, 1, round+1)
		if s.View().Store().Len() != 1 || !s.HasSynced() || !IsClosed(s.Synced()) || len(r.take()) == 0 {
			t.Error("the objects were not stored or not delivered")
		}
		a.Set(false, shards.Shard{})()
		watchesAre(t, "inactive", srv, p, 0, round+1)
		state := s.State()
		if s.View().Store().Len() != 0 || s.HasSynced() || IsClosed(s.Synced()) || state.Phase != Stopped {
			t.Errorf("the subscription is synced or holds objects, and its state is %v", state)
		}
		srv.put("a")
		if events := r.take(); len(events) != 0 {
			t.Errorf("while it is inactive, the subscription received %q", events)
		}
	}
	closeAndWait(s)
	if len(a.subscriptions) != 0 {
		t.Error("the activity holds a subscription that was closed")
	}
}

func TestActivity_SharedWatchRunsForActiveSubscriptions(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		first, second := p.NewActivity(false, shards.Shard{}), p.NewActivity(false, shards.Shard{})
		one, two := first.Subscribe(options(Metadata), nil), second.Subscribe(options(Metadata), nil)
		third := second.Subscribe(options(Metadata), nil)
		first.Set(true, shards.Shard{})
		watchesAre(t, "one is active", srv, p, 1, 1)
		if one.View().Store().Len() != 1 || two.View().Store().Len() != 0 {
			t.Error("an inactive subscription reads the watch, or the active one does not")
		}
		second.Set(true, shards.Shard{})
		watchesAre(t, "both are active", srv, p, 1, 1)
		if !two.HasSynced() || !third.HasSynced() {
			t.Error("a subscription that joined a watch that has synced has not synced")
		}
		first.Set(false, shards.Shard{})()
		watchesAre(t, "the other one is active", srv, p, 1, 1)
		r := attachRecorder(two)
		srv.put("b")
		synctest.Wait()
		if len(r.take()) == 0 {
			t.Error("the remaining subscription received nothing")
		}
		second.Set(false, shards.Shard{})()
		watchesAre(t, "none is active", srv, p, 0, 1)
		for _, s := range []*Subscription{one, two, third} {
			closeAndWait(s)
		}
	})
}

// A subscription that is always active keeps a watch that an inactive one leaves. If it needs less, it moves.
func TestActivity_RemainingSubscriptionsMoveToANarrowerWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		a := p.NewActivity(true, shards.Shard{})
		wide, narrow := a.Subscribe(options(Full), nil), p.Subscribe(options(Metadata), nil)
		watchesAre(t, "both", srv, p, 1, 1)
		a.Set(false, shards.Shard{})()
		watchesAre(t, "after the move", srv, p, 1, 2)
		if key := narrow.watch().key; key.Projection != Metadata || !narrow.HasSynced() {
			t.Errorf("the remaining subscription has the watch %v", key)
		}
		closeAndWait(wide)
		closeAndWait(narrow)
	})
}

// Replace takes effect at once while the subscription is inactive, and when it becomes inactive.
func TestActivity_ReplaceTakesEffectAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		a := p.NewActivity(false, shards.Shard{})
		s := a.Subscribe(options(Full), nil)
		effects := 0
		effect := func() { effects++ }
		s.Replace(selecting(Metadata), effect, effect)
		if effects != 2 || s.View().Options().Key != selecting(Metadata).Key {
			t.Errorf("%d callbacks were called, and the options are %v", effects, s.View().Options())
		}
		srv.put("a")
		srv.putWith("b", x1)
		a.Set(true, shards.Shard{})
		watchesAre(t, "active", srv, p, 1, 1)
		if n := s.View().Store().Len(); n != 1 {
			t.Errorf("the newest options select %d objects, want 1", n)
		}
		srv.set(func() { srv.hang[Full] = true })
		s.Replace(options(Full), effect, effect)
		synctest.Wait()
		if _, pending := s.Replacement(); !pending || effects != 2 {
			t.Error("the replacement is not pending")
		}
		a.Set(false, shards.Shard{})()
		if _, pending := s.Replacement(); pending || effects != 4 || s.View().Options().Key != options(Full).Key {
			t.Errorf("%d callbacks were called, and the options are %v", effects, s.View().Options())
		}
		watchesAre(t, "inactive", srv, p, 0, 2)
		srv.set(func() { srv.hang[Full] = false })
		a.Set(true, shards.Shard{})
		synctest.Wait()
		if n := s.View().Store().Len(); n != 2 {
			t.Errorf("the newest options select %d objects, want 2", n)
		}
		closeAndWait(s)
	})
}

// A replacement that follows the activity can be cancelled before it has switched.
func TestActivity_CancelReplaceDoesNotKeepTheWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		a := p.NewActivity(true, shards.Shard{})
		s := a.Subscribe(options(Full), nil)
		synctest.Wait()
		srv.set(func() { srv.hang[Full] = true })
		s.Replace(selecting(Full), noop, noop)
		synctest.Wait()
		w := s.lockDelivery()
		a.Set(false, shards.Shard{})
		s.CancelReplace()
		w.delivery.Unlock()
		watchesAre(t, "inactive", srv, p, 0, 2)
		closeAndWait(s)
	})
}

// While a subscription is about to leave a watch that stores more than it needs, another one joins that watch.
func TestActivity_SubscriptionLeavesAlthoughItsWatchIsNeeded(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		a := p.NewActivity(true, shards.Shard{})
		wide, narrow := p.Subscribe(options(Full), nil), a.Subscribe(options(Metadata), nil)
		synctest.Wait()
		w := narrow.lockDelivery()
		a.Set(false, shards.Shard{})
		other := p.Subscribe(options(Full), nil)
		w.delivery.Unlock()
		synctest.Wait()
		if !narrow.current.Load().at.idle {
			t.Error("an inactive subscription uses a watch")
		}
		for _, s := range []*Subscription{wide, narrow, other} {
			closeAndWait(s)
		}
	})
}

// A subscription is inactive for a moment while it waits for a watch that stores less. It moves there nevertheless.
func TestActivity_MoveToANarrowerWatchContinues(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		srv.set(func() { srv.hang[Metadata] = true })
		a := p.NewActivity(true, shards.Shard{})
		wide, narrow := p.Subscribe(options(Full), nil), a.Subscribe(options(Metadata), nil)
		synctest.Wait()
		closeAndWait(wide)
		w := narrow.lockDelivery()
		a.Set(false, shards.Shard{})
		a.Set(true, shards.Shard{})
		w.delivery.Unlock()
		srv.set(func() { srv.hang[Metadata] = false })
		synctest.Wait()
		if key := narrow.watch().key; key.Projection != Metadata || !narrow.HasSynced() {
			t.Errorf("the subscription has the watch %v, want one of metadata that has synced", key)
		}
		closeAndWait(narrow)
	})
}

func TestActivity_SetWaitsForTheWatchesThatEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		srv.put("a")
		hang := make(chan struct{})
		a := p.NewActivity(true, shards.Shard{})
		o := options(Metadata)
		o.Transform = func(obj any) (any, error) {
			<-hang
			return obj, nil
		}
		s := a.Subscribe(o, nil)
		synctest.Wait()
		returned := make(chan struct{})
		wait := a.Set(false, shards.Shard{})
		go func() { wait(); close(returned) }()
		synctest.Wait()
		if IsClosed(returned) || !s.current.Load().at.idle {
			t.Error("wait returned before the watch had ended, or the subscription still has it")
		}
		close(hang)
		<-returned
		if n := srv.openWatches(); n != 0 {
			t.Errorf("%d watches are open", n)
		}
		closeAndWait(s)
	})
}

// A subscription joins a watch that was not started, because its only subscription was about to leave it.
func TestActivity_SkippedWatchStartsForAnotherSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer("a")
		p := newTestPool(srv)
		a := p.NewActivity(true, shards.Shard{})
		s := a.Subscribe(options(Full), nil)
		w := s.lockDelivery()
		a.Set(false, shards.Shard{})
		stop := p.Start()
		other := p.Subscribe(options(Full), nil)
		w.delivery.Unlock()
		synctest.Wait()
		if !other.HasSynced() {
			t.Error("the other subscription has not synced")
		}
		stop()
		closeAndWait(s)
		closeAndWait(other)
	})
}

// Watches are not started for subscriptions that are about to leave them, and start again if they stay.
func TestActivity_ChangesTwiceBeforeTheSubscriptionHasMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer("a")
		p := newTestPool(srv)
		a := p.NewActivity(true, shards.Shard{})
		s := a.Subscribe(options(Full), nil)
		w := s.lockDelivery()
		wait := a.Set(false, shards.Shard{})
		stop := p.Start()
		if len(srv.listed()) != 0 || s.current.Load().at.startedIn != nil {
			t.Error("a watch was started for an inactive subscription")
		}
		waitAgain := a.Set(true, shards.Shard{})
		w.delivery.Unlock()
		wait()
		waitAgain()
		watchesAre(t, "active again", srv, p, 1, 1)
		if !s.HasSynced() {
			t.Error("the subscription has not synced")
		}
		stop()
		closeAndWait(s)
	})
}

// The pool stops and starts while a subscription is inactive.
func TestActivity_SessionsDoNotStartIdleWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer("a")
		p := newTestPool(srv)
		a := p.NewActivity(false, shards.Shard{})
		s := a.Subscribe(options(Full), nil)
		p.Start()()
		stop := p.Start()
		watchesAre(t, "inactive", srv, p, 0, 0)
		stop()
		a.Set(true, shards.Shard{})
		synctest.Wait()
		stop = p.Start()
		watchesAre(t, "active", srv, p, 1, 1)
		stop()
		closeAndWait(s)
	})
}

// A subscription needs less than its watch stores. It can stay there only because it has a replacement that leads to
// the same watch and needs all of it. When the replacement is cancelled, the subscription moves to a watch that stores
// less, unless the call that cancels the replacement requires another watch.
func TestActivity_ReplacementThatLeadsToTheCurrentWatchEnds(t *testing.T) {
	keys, full := options(Keys), bucketed(Full)
	for name, test := range map[string]struct {
		end  func(s *Subscription)
		want []Projection
	}{
		"by Close":                       {(*Subscription).Close, nil},
		"by Replace with another watch":  {func(s *Subscription) { s.Replace(keys, noop, noop) }, []Projection{Keys}},
		"by Replace with the same watch": {func(s *Subscription) { s.Replace(full, noop, noop) }, []Projection{Full}},
		"by CancelReplace":               {(*Subscription).CancelReplace, []Projection{Metadata}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, srv *server, p *Pool) {
				own, other := shards.Shard{Count: 2}, shards.Shard{Index: 1, Count: 2}
				a := p.NewActivity(true, own)
				wide, s := a.Subscribe(bucketed(Full), nil), a.Subscribe(bucketed(Metadata), nil)
				synctest.Wait()
				w := s.lockDelivery()
				a.Set(true, other)
				s.Replace(bucketed(Full), noop, noop)
				a.Set(true, own)
				wide.Close()
				test.end(s)
				w.delivery.Unlock()
				synctest.Wait()
				expectWatches(t, srv, p, name, test.want...)
				closeAndWait(s)
				expectWatches(t, srv, p, "closed")
			})
		})
	}
}

// Activities change while subscriptions are added, replaced, attached and closed, and while the pool stops and starts.
func TestActivity_Stress(t *testing.T) {
	srv := newServer()
	p := newTestPool(srv)
	stop := p.Start()
	over := make(chan struct{})
	var background, users sync.WaitGroup
	background.Go(func() { srv.churn(over) })
	activities := []*Activity{
		p.NewActivity(true, shards.Shard{}), p.NewActivity(false, shards.Shard{}), p.NewActivity(false, shards.Shard{}),
	}
	for _, a := range activities {
		background.Go(func() { a.toggle(over) })
		for range 2 {
			users.Go(func() {
				for range 60 {
					a.useAtRandom()
				}
			})
		}
	}
	stays := map[*Activity]*model{}
	for _, a := range activities {
		m := &model{t: t, restarts: true, subscription: a.Subscribe(bucketed(Metadata), nil)}
		stays[a] = m
	}
	for range 20 {
		time.Sleep(5 * time.Millisecond)
		stop()
		stop = p.Start()
	}
	users.Wait()
	close(over)
	background.Wait()
	for _, a := range activities {
		a.Set(false, shards.Shard{})()
	}
	nothingRuns(t, srv, p)
	for a, m := range stays {
		a.Set(true, shards.Shard{})
		m.attach()
		eventually(t, func() string { return m.diff(srv.versions()) })
		m.close()
	}
	stop()
	nothingRuns(t, srv, p)
}

// toggle changes the activity at random until over is closed.
func (a *Activity) toggle(over <-chan struct{}) {
	for !IsClosed(over) {
		wait := a.Set(rand.N(2) == 0, []shards.Shard{{}, {Count: 2}, {Index: 1, Count: 2}}[rand.N(3)])
		if rand.N(2) == 0 {
			wait()
		}
		time.Sleep(rand.N(300 * time.Microsecond))
	}
}

// useAtRandom adds, replaces and closes a subscription.
func (a *Activity) useAtRandom() {
	anyOptions := func() Options {
		o := []Options{options(Keys), options(Metadata), options(Full), selecting(Full), transformed(Metadata),
			bucketed(Metadata), bucketed(Full)}[rand.N(7)]
		o.Blocking = rand.N(2) == 0
		return o
	}
	s := a.Subscribe(anyOptions(), nil)
	attachRecorder(s)
	for range rand.N(4) {
		s.Replace(anyOptions(), noop, noop)
		time.Sleep(rand.N(500 * time.Microsecond))
		if rand.N(2) == 0 {
			s.CancelReplace()
		}
	}
	if rand.N(2) == 0 {
		s.Detach()
	}
	closeAndWait(s)
}

func nothingRuns(t *testing.T, srv *server, p *Pool) {
	t.Helper()
	if srv.openWatches() != 0 || p.Watches(widgets) != 0 || len(p.Running()) != 0 {
		t.Errorf("%d watches are left in the pool, and %d are open", p.Watches(widgets), srv.openWatches())
	}
}
