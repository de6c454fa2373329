package dynamiccontroller_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func sleepASecond(context.Context, dynamiccontroller.ObjectIdentifiers) error {
	time.Sleep(time.Second)
	return nil
}

func TestShardLoad_CountsWhatTheRunOfTheShardCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 5, dynamiccontroller.Config{Workers: 4})
		want := func(when string, shard int, want string) {
			t.Helper()
			objects, busy, changes, ok := f.controller.ShardLoad(shard, 2)
			if got := fmt.Sprint(objects, busy, changes, ok); got != want {
				t.Errorf("%s: shard %d: got %s, want %s", when, shard, got, want)
			}
		}
		first, second, other, child := f.types[0], f.types[2], f.types[1], f.types[4]
		f.serve(first, sleepASecond, dynamiccontroller.Owns(child))
		f.serve(second, sleepASecond, dynamiccontroller.Owns(child))
		f.serve(other, sleepASecond)
		f.put(first, "a")
		f.put(child, "x")
		want("before the run", 0, "0 0s 0 false")
		stop := f.runShard(0)
		time.Sleep(500 * time.Millisecond)
		want("in the first call", 0, "1 500ms 0 true")
		time.Sleep(time.Minute)
		f.put(second, "b")
		f.put(child, "x")
		time.Sleep(time.Minute)
		want("after a change", 0, "2 2s 1 true")
		want("a shard that does not run", 1, "0 0s 0 false")
		stop()
		stop = f.runShard(0)
		time.Sleep(time.Minute)
		want("in the next run", 0, "2 2s 0 true")
		f.put(first, "a")
		time.Sleep(time.Minute)
		want("after a change in it", 0, "2 3s 1 true")
		stop()
	})
}

func TestShardLoad_IsUnknownWhileExistingObjectsAreReconciled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSharded(t, 1, dynamiccontroller.Config{Workers: 1})
		f.serve(f.types[0], sleepASecond)
		for i := range 400 {
			f.put(f.types[0], fmt.Sprint(i))
		}
		defer f.runShard(0)()
		known := func() bool {
			_, _, _, ok := f.controller.ShardLoad(0, 2)
			return ok
		}
		time.Sleep(299 * time.Second)
		if known() {
			t.Error("known while objects are reconciled for the first time")
		}
		time.Sleep(time.Second)
		if !known() {
			t.Error("unknown for more than five minutes")
		}
	})
}
