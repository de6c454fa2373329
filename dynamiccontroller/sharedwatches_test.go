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

// Stopping one subscriber of a shared watch does not affect the others. Its own handler is not called again.
func TestS6_StopKeepsASharedWatchForItsOtherSubscribers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, dynamiccontroller.Config{Workers: 2, ResyncPeriod: -1})
		shared := w.types[0]
		stop := w.run()
		w.client.ClearActions()
		all := map[string]*calls{}
		for _, name := range []string{"served", "owner", "watcher"} {
			all[name] = newCalls(succeed)
		}
		metadata := dynamiccontroller.WithCache(dynamiccontroller.CacheMetadata)
		w.put(w.types[1], "a")
		w.serve(shared, all["served"].handle, metadata)
		w.serve(w.types[1], all["owner"].handle, metadata, dynamiccontroller.Owns(shared))
		w.serve(w.types[2], all["watcher"].handle, metadata, dynamiccontroller.Watches(shared, func(context.Context, dynamiccontroller.Object) []string { return []string{"default/x"} }))
		watches := 0
		for _, action := range w.client.Actions() {
			if action.GetVerb() == "watch" && action.GetResource() == shared {
				watches++
			}
		}
		if watches != 1 {
			t.Errorf("%d watches were opened for one type", watches)
		}
		for _, c := range all {
			c.take()
		}
		w.put(shared, "c", w.id(w.types[1], "a"))
		all["served"].want(t, "served", named("c"))
		all["owner"].want(t, "owner", named("a"))
		all["watcher"].want(t, "watcher", named("x"))
		left := w.controller.Leftovers(shared)
		for i, name := range []string{"served", "owner", "watcher"} {
			if err := w.controller.StopServiceGVK(context.Background(), w.types[i]); err != nil {
				t.Fatal(err)
			}
			if what := left(); what != "" {
				t.Errorf("left of the stopped type: %s", what)
			}
			w.put(shared, "c", w.id(w.types[1], "a"))
			all[name].want(t, name+" after its stop", named())
			for _, c := range all {
				c.take()
			}
			if n, want := w.controller.WatchesOf(shared), 1; (n == want) != (i < 2) {
				t.Errorf("%d watches after %s was stopped", n, name)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Types that own each other are started, stopped and changed concurrently, across several runs. Nothing is left behind.
func TestS2_ConcurrentChangesOfSecondariesLeaveNothingBehind(t *testing.T) {
	const goroutines, rounds = 6, 150
	w := newWorld(t, 3, dynamiccontroller.Config{Workers: 4, ResyncPeriod: -1})
	ctx, cancel := context.WithCancel(context.Background())
	var users, runs sync.WaitGroup
	runs.Go(func() {
		for ctx.Err() == nil {
			term, end := context.WithTimeout(ctx, 20*time.Millisecond)
			if err := w.controller.Run(term); err != nil {
				t.Error(err)
			}
			end()
		}
	})
	handler := func(ctx context.Context, id dynamiccontroller.ObjectIdentifiers) error {
		return w.controller.AddWatches(ctx, id.GVR, dynamiccontroller.Owns(w.types[rand.N(3)]))
	}
	option := func() dynamiccontroller.Watch {
		gvr, mode := w.types[rand.N(3)], dynamiccontroller.WithCache(dynamiccontroller.CacheMode(rand.N(2)))
		if rand.N(2) == 0 {
			return dynamiccontroller.Owns(gvr, mode)
		}
		return dynamiccontroller.Watches(gvr, func(context.Context, dynamiccontroller.Object) []string { return []string{"default/a"} }, mode)
	}
	for range goroutines {
		users.Go(func() {
			for range rounds {
				gvr := w.types[rand.N(3)]
				var err error
				switch rand.N(6) {
				case 0:
					err = w.controller.StopServiceGVK(ctx, gvr)
				case 1, 2:
					mode := dynamiccontroller.WithCache(dynamiccontroller.CacheMode(rand.N(3)))
					err = w.controller.StartServingGVK(ctx, gvr, handler, mode, option(), option())
				case 3:
					err = w.controller.AddWatches(ctx, gvr, option())
				case 4:
					err = w.controller.RemoveWatches(ctx, gvr, option().Key())
				default:
					w.controller.Enqueue(w.id(gvr, "a"))
					for _, status := range w.controller.Status() {
						if lister, err := w.controller.SecondaryLister(status.GVR, option().Key()); err == nil {
							_, _ = lister.OwnedBy("uid")
						}
					}
				}
				if err != nil && !errors.Is(err, dynamiccontroller.ErrNotServed) {
					t.Error(err)
				}
			}
		})
	}
	users.Wait()
	for _, gvr := range w.types {
		left := w.controller.Leftovers(gvr)
		if err := w.controller.StopServiceGVK(ctx, gvr); err != nil {
			t.Error(err)
		}
		if what := left(); what != "" && !strings.Contains(what, dynamiccontroller.ErrNotServed.Error()) {
			t.Error(what)
		}
	}
	for _, gvr := range w.types {
		if n := w.controller.WatchesOf(gvr); n != 0 {
			t.Errorf("%d watches of %s are left", n, gvr)
		}
	}
	cancel()
	runs.Wait()
}

// A promotion uses the caches that the standby has filled: it makes no request and reconciles each object once.
func TestL5_PromotionMakesNoRequestsForSecondaries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, dynamiccontroller.Config{Workers: 1, ResyncPeriod: -1})
		parent, child, other := w.types[0], w.types[1], w.types[2]
		for _, name := range []string{"a", "b"} {
			w.put(parent, name)
			w.put(child, "of-"+name, w.id(parent, name))
			w.put(other, "of-"+name, w.id(parent, name))
		}
		c := newCalls(succeed)
		mapped := 0
		w.serve(parent, c.handle, dynamiccontroller.Owns(child), dynamiccontroller.Owns(other),
			dynamiccontroller.Watches(child, func(context.Context, dynamiccontroller.Object) []string { mapped++; return nil }))
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- w.controller.RunWatches(ctx) }()
		synctest.Wait()
		w.put(child, "of-a", w.id(parent, "a"))
		c.want(t, "a standby", named())
		for range 2 {
			w.client.ClearActions()
			stop := w.run()
			c.want(t, "a promotion", named("a", "b"))
			if actions := w.client.Actions(); len(actions) != 0 {
				t.Errorf("requests: %v", actions)
			}
			w.put(other, "of-b", w.id(parent, "b"))
			c.want(t, "an event", named("b"))
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
		before := mapped
		w.put(child, "of-a", w.id(parent, "a"))
		if mapped != before {
			t.Error("a standby called a MapFunc for an event")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
