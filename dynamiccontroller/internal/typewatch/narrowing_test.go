package typewatch

import (
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dynamic-controller/engine/internal/shards"
)

// bucketed returns the options of a subscription that is narrowed to the shard of its activity.
func bucketed(projection Projection) Options {
	o := options(projection)
	o.BucketLabel = "bucket"
	return o
}

func inBucket(n int) map[string]string { return map[string]string{"bucket": strconv.Itoa(n)} }

var (
	even = shards.Shard{Index: 0, Count: 2}
	odd  = shards.Shard{Index: 1, Count: 2}
)

// wantObjects compares the names of the objects in the subscription's store.
func wantObjects(t *testing.T, what string, s *Subscription, want ...string) {
	t.Helper()
	synctest.Wait()
	var got []string
	for _, r := range s.View().Store().All() {
		got = append(got, r.GetName())
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}

// fillBuckets creates an object in an even bucket, one in an odd bucket, and one without a bucket.
func fillBuckets(srv *server) {
	srv.putWith("even", inBucket(4))
	srv.putWith("odd", inBucket(255))
	srv.put("none")
}

func TestActivity_SubscriptionsOfAShardShareANarrowedWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		fillBuckets(srv)
		activities := []*Activity{p.NewActivity(true, even), p.NewActivity(false, odd), p.NewActivity(true, even)}
		var subs []*Subscription
		for _, a := range activities {
			subs = append(subs, a.Subscribe(bucketed(Metadata), nil))
		}
		watchesAre(t, "two subscriptions of a shard", srv, p, 1, 1)
		activities[1].Set(true, odd)
		watchesAre(t, "two shards", srv, p, 2, 2)
		wantObjects(t, "even", subs[0], "even", "none")
		wantObjects(t, "odd", subs[1], "none", "odd")
		wantObjects(t, "even again", subs[2], "even", "none")
		others := activities[1].Subscribe(options(Metadata), nil)
		wantObjects(t, "a subscription without the option", others, "even", "none", "odd")
		selected := bucketed(Full)
		selected.LabelSelector = "!x"
		both := activities[1].Subscribe(selected, nil)
		srv.putWith("x", map[string]string{"x": "1", "bucket": "1"})
		wantObjects(t, "a subscription with another selector", both, "none", "odd")
		activities[0].Set(false, even)()
		wantObjects(t, "a subscription of the shard remains", subs[2], "even", "none")
		for _, s := range append(subs, others, both) {
			closeAndWait(s)
		}
	})
}

// If the shard changes before the watches have started, nothing is listed for the former one.
func TestActivity_ShardIsSetBeforeTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer()
		fillBuckets(srv)
		p := newTestPool(srv)
		a := p.NewActivity(true, shards.Shard{})
		s := a.Subscribe(bucketed(Metadata), nil)
		a.Set(true, even) // the subscription moves in the background
		stop := p.Start()
		wantObjects(t, "the first session", s, "even", "none")
		watchesAre(t, "the first session", srv, p, 1, 1)
		stop()
		closeAndWait(s)
	})
}

// The subscription reads the former watch until the new one has synced. Then it receives the difference.
func TestActivity_ShardChangesWhileActive(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		fillBuckets(srv)
		a := p.NewActivity(true, shards.Shard{})
		s := a.Subscribe(bucketed(Metadata), nil)
		r := attachRecorder(s)
		synctest.Wait()
		r.take()
		srv.set(func() { srv.hang[Metadata] = true })
		a.Set(true, odd)() // does not wait for the sync
		srv.putWith("odd", inBucket(255))
		wantObjects(t, "while the list hangs", s, "even", "none", "odd")
		r.expect(t, "while the list hangs", "ns/odd 2>4")
		srv.set(func() { srv.hang[Metadata] = false })
		a.Set(true, even)() // another shard before the move is over
		wantObjects(t, "after the move", s, "even", "none")
		r.expect(t, "the move", "ns/odd 4>-")
		if n := p.Watches(widgets); n != 1 {
			t.Errorf("%d watches, want 1", n)
		}
		a.Set(true, shards.Shard{})()
		wantObjects(t, "after the last move", s, "even", "none", "odd")
		r.expect(t, "the last move", "ns/odd ->4")
		closeAndWait(s)
	})
}

// A subscription that moves to another shard shares its watch with one that needs more of each object.
func TestActivity_WiderSubscriptionsDoNotCancelTheMoveToAShard(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		fillBuckets(srv)
		a, other := p.NewActivity(true, shards.Shard{}), p.NewActivity(true, shards.Shard{})
		wide, narrow := other.Subscribe(bucketed(Full), nil), a.Subscribe(bucketed(Metadata), nil)
		synctest.Wait()
		srv.set(func() { srv.refuseLists[Metadata] = errors.New("refused") })
		a.Set(true, odd)
		synctest.Wait()
		third := other.Subscribe(bucketed(Full), nil) // the watch is settled again
		srv.set(func() { delete(srv.refuseLists, Metadata) })
		time.Sleep(time.Minute)
		wantObjects(t, "the subscription of a shard", narrow, "none", "odd")
		wantObjects(t, "the other one", wide, "even", "none", "odd")
		for _, s := range []*Subscription{wide, narrow, third} {
			closeAndWait(s)
		}
	})
}

func TestActivity_ReplacementsAreNarrowed(t *testing.T) {
	inBubble(t, func(t *testing.T, srv *server, p *Pool) {
		fillBuckets(srv)
		a := p.NewActivity(true, even)
		s := a.Subscribe(options(Metadata), nil)
		synctest.Wait()
		s.Replace(bucketed(Metadata), noop, noop)
		wantObjects(t, "an immediate replacement", s, "even", "none")
		srv.set(func() { srv.hang[Full] = true })
		s.Replace(bucketed(Full), noop, noop)
		synctest.Wait()
		srv.set(func() { srv.hang[Full] = false })
		a.Set(true, odd) // while the replacement is pending
		wantObjects(t, "a pending replacement", s, "none", "odd")
		if key := s.View().Options().Key; key != bucketed(Full).Key {
			t.Errorf("the options have the key %+v", key)
		}
		a.Set(false, odd)()
		wantObjects(t, "inactive", s)
		closeAndWait(s)
	})
}
