package handlers

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

type (
	identifiers = dynamiccontroller.ObjectIdentifiers
	handler     = dynamiccontroller.Handler
)

func TestTheFirstOfAChainIsTheOutermost(t *testing.T) {
	var calls string
	say := func(word string) Middleware {
		return func(next handler) handler {
			return func(ctx context.Context, id identifiers) error {
				calls += word
				defer func() { calls += "/" + word }()
				return next(ctx, id)
			}
		}
	}
	err := Chain(say("a"), Chain(), say("b"))(func(context.Context, identifiers) error { calls += "!"; return nil })(t.Context(), first)
	if calls != "ab!/b/a" || err != nil {
		t.Errorf("called %s, %v", calls, err)
	}
}

func TestATimeoutSaysSoAndOnlyThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause error
		hangs := Timeout(time.Second)(func(ctx context.Context, _ identifiers) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		})
		start := time.Now()
		if err := hangs(t.Context(), first); !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(cause, ErrTimeout) {
			t.Errorf("got %v, of cause %v", err, cause)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("it took %s", took)
		}
		stopped, stop := context.WithCancelCause(t.Context())
		stop(dynamiccontroller.ErrRunEnded)
		if err := hangs(stopped, first); errors.Is(err, ErrTimeout) || !errors.Is(cause, dynamiccontroller.ErrRunEnded) {
			t.Errorf("got %v, of cause %v", err, cause)
		}
		own := errors.New("own")
		late := Timeout(time.Second)(func(context.Context, identifiers) error {
			time.Sleep(2 * time.Second)
			return own
		})
		if err := late(t.Context(), first); err != own {
			t.Errorf("got %v", err)
		}
	})
}

func TestOutcomesAreForDevelopers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for verbosity, want := range [][]string{nil, {`"level"=1 "msg"="reconciled" "outcome"="done" "took"="1s"`, `"level"=1 "msg"="reconciled" "outcome"="requeue after 1m0s" "took"="1s"`}} {
			var lines []string
			log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{Verbosity: verbosity})
			for _, outcome := range []error{nil, dynamiccontroller.RequeueAfter(time.Minute)} {
				err := Logging()(func(context.Context, identifiers) error {
					time.Sleep(time.Second)
					return outcome
				})(logr.NewContext(t.Context(), log), first)
				if err != outcome {
					t.Errorf("got %v", err)
				}
			}
			if len(lines) != len(want) || len(want) > 0 && (lines[0] != want[0] || lines[1] != want[1]) {
				t.Errorf("at verbosity %d: %q", verbosity, lines)
			}
		}
	})
}

// No more than n run at once in a class, whatever other classes do; who finds no room holds no worker, and room that a
// panic leaves is room.
func TestAClassHasRoomForSoMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		var mu sync.Mutex
		running, most := map[string]int{}, map[string]int{}
		limited := Concurrency(2, identifiers.Namespace)(func(_ context.Context, id identifiers) error {
			mu.Lock()
			running[id.Namespace()]++
			most[id.Namespace()] = max(most[id.Namespace()], running[id.Namespace()])
			mu.Unlock()
			<-hold
			mu.Lock()
			running[id.Namespace()]--
			mu.Unlock()
			return nil
		})
		var refused []error
		var group sync.WaitGroup
		for _, namespace := range []string{"a", "b"} {
			for range 5 {
				group.Go(func() {
					if err := limited(t.Context(), identifiers{NamespacedKey: namespace + "/x"}); err != nil {
						mu.Lock()
						defer mu.Unlock()
						refused = append(refused, err)
					}
				})
			}
		}
		synctest.Wait()
		mu.Lock()
		if len(refused) != 6 || most["a"] != 2 || most["b"] != 2 {
			t.Errorf("%d were refused, at most %v ran at once", len(refused), most)
		}
		mu.Unlock()
		close(hold)
		group.Wait()

		one := Concurrency(1, identifiers.Namespace)
		func() {
			defer func() { _ = recover() }()
			_ = one(func(context.Context, identifiers) error { panic("x") })(t.Context(), first)
		}()
		if err := one(func(context.Context, identifiers) error { return nil })(t.Context(), first); err != nil {
			t.Errorf("after a panic: %v", err)
		}
	})
}
