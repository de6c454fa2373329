package dynamiccontroller_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// Stopping one subscriber to a shared watch does not affect the other subscribers. The stopped subscriber's handler is
// not called again.
func TestS6_StopKeepsASharedWatchForItsOtherSubscribers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		shared := f.types[0]
		stop := f.run()
		f.client.ClearActions()
		all := map[string]*calls{}
		for _, name := range []string{"served", "owner", "watcher"} {
			all[name] = newCalls(succeed)
		}
		metadata := dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata)
		f.put(f.types[1], "a")
		f.serve(shared, all["served"].handle, metadata)
		f.serve(f.types[1], all["owner"].handle, metadata, dynamiccontroller.Owns(shared))
		f.serve(f.types[2], all["watcher"].handle, metadata, dynamiccontroller.Watches(shared, mapTo("default/x")))
		requests := 0
		for _, action := range f.client.Actions() {
			if action.Matches("watch", shared.Resource) {
				requests++
			}
		}
		if requests != 1 {
			t.Errorf("%d watches were opened for one type, want 1", requests)
		}
		for _, c := range all {
			c.take()
		}
		f.put(shared, "c", f.id(f.types[1], "a"))
		all["served"].want(t, "served", named("c"))
		all["owner"].want(t, "owner", named("a"))
		all["watcher"].want(t, "watcher", named("x"))
		left := f.controller.Leftovers(shared)
		for i, name := range []string{"served", "owner", "watcher"} {
			if err := f.controller.StopServiceGVK(context.Background(), f.types[i]); err != nil {
				t.Fatal(err)
			}
			if what := left(); what != "" {
				t.Errorf("the controller still holds state of the stopped type: %s", what)
			}
			f.put(shared, "c", f.id(f.types[1], "a"))
			all[name].want(t, name+" after its stop", named())
			for _, c := range all {
				c.take()
			}
			if n, want := f.controller.WatchesOf(shared), 1; (n == want) != (i < 2) {
				t.Errorf("%d watches after %s was stopped", n, name)
			}
		}
		stop()
	})
}

// Types that own each other are started, stopped and changed concurrently, across several runs. Nothing is left behind.
func TestS2_ConcurrentChangesToSecondariesLeaveNothingBehind(t *testing.T) {
	const goroutines, rounds = 6, 150
	f := newFixture(t, 3, dynamiccontroller.Config{Workers: 4, ResyncPeriod: -1})
	ctx, cancel := context.WithCancel(context.Background())
	var users, runs sync.WaitGroup
	runs.Go(func() {
		for ctx.Err() == nil {
			term, end := context.WithTimeout(ctx, 20*time.Millisecond)
			if err := f.controller.Run(term); err != nil {
				t.Error(err)
			}
			end()
		}
	})
	handler := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		return f.controller.AddWatches(ctx, id.GVR, dynamiccontroller.Owns(f.types[rand.N(3)]))
	}
	option := func() dynamiccontroller.Watch {
		gvr, mode := f.types[rand.N(3)], dynamiccontroller.WithCache(dynamiccontroller.CacheMode(rand.N(2)))
		if rand.N(2) == 0 {
			return dynamiccontroller.Owns(gvr, mode)
		}
		return dynamiccontroller.Watches(gvr, mapTo("default/a"), mode)
	}
	read := func() {
		for _, status := range f.controller.Status() {
			if lister, err := f.controller.SecondaryLister(status.GVR, option().Key()); err == nil {
				_, _ = lister.OwnedBy("uid")
			}
		}
	}
	change := func() error {
		gvr := f.types[rand.N(3)]
		switch rand.N(6) {
		case 0:
			return f.controller.StopServiceGVK(ctx, gvr)
		case 1, 2:
			mode := dynamiccontroller.WithCache(dynamiccontroller.CacheMode(rand.N(3)))
			return f.controller.StartServingGVK(ctx, gvr, handler, mode, option(), option())
		case 3:
			return f.controller.AddWatches(ctx, gvr, option())
		case 4:
			return f.controller.RemoveWatches(ctx, gvr, option().Key())
		default:
			f.controller.Enqueue(f.id(gvr, "a"))
			read()
			return nil
		}
	}
	for range goroutines {
		users.Go(func() {
			for range rounds {
				if err := change(); err != nil && !errors.Is(err, dynamiccontroller.ErrNotServed) {
					t.Error(err)
				}
			}
		})
	}
	users.Wait()
	stopAll(t, f)
	cancel()
	runs.Wait()
}

// stopAll stops all types and checks that they leave nothing behind.
func stopAll(t *testing.T, f *fixture) {
	t.Helper()
	for _, gvr := range f.types {
		left := f.controller.Leftovers(gvr)
		if err := f.controller.StopServiceGVK(context.Background(), gvr); err != nil {
			t.Error(err)
		}
		if what := left(); what != "" && !strings.Contains(what, dynamiccontroller.ErrNotServed.Error()) {
			t.Error(what)
		}
	}
	for _, gvr := range f.types {
		if n := f.controller.WatchesOf(gvr); n != 0 {
			t.Errorf("%d watches of %s remain, want none", n, gvr)
		}
	}
}

// A promotion uses the caches that were filled on the standby. It sends no request and reconciles each object once.
func TestL5_PromotionMakesNoRequestsForSecondaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child, other := f.types[0], f.types[1], f.types[2]
		for _, name := range []string{"a", "b"} {
			f.put(parent, name)
			f.put(child, "of-"+name, f.id(parent, name))
			f.put(other, "of-"+name, f.id(parent, name))
		}
		c := newCalls(succeed)
		mapped := 0
		f.serve(parent, c.handle, dynamiccontroller.Owns(child), dynamiccontroller.Owns(other),
			dynamiccontroller.Watches(child, func(context.Context, dynamiccontroller.Object) []string { mapped++; return nil }))
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- f.controller.RunWatches(ctx) }()
		synctest.Wait()
		f.put(child, "of-a", f.id(parent, "a"))
		c.want(t, "a standby", named())
		for range 2 {
			f.client.ClearActions()
			stop := f.run()
			c.want(t, "a promotion", named("a", "b"))
			if actions := f.client.Actions(); len(actions) != 0 {
				t.Errorf("the promotion sent the requests %v, want none", actions)
			}
			f.put(other, "of-b", f.id(parent, "b"))
			c.want(t, "an event", named("b"))
			stop()
		}
		before := mapped
		f.put(child, "of-a", f.id(parent, "a"))
		if mapped != before {
			t.Error("a standby called a MapFunc for an event")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
