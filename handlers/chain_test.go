package handlers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

func TestChain_FirstMiddlewareIsTheOutermost(t *testing.T) {
	var calls string
	record := func(name string) Middleware {
		return func(next handler) handler {
			return func(ctx context.Context, id identifiers) error {
				calls += name
				defer func() { calls += "/" + name }()
				return next(ctx, id)
			}
		}
	}
	inner := func(context.Context, identifiers) error { calls += "!"; return nil }
	err := Chain(record("a"), Chain(), record("b"))(inner)(t.Context(), first)
	if calls != "ab!/b/a" || err != nil {
		t.Errorf("called %s, %v", calls, err)
	}
}

func TestTimeout_IsReportedOnlyIfItExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause error
		hangs := Timeout(time.Second)(func(ctx context.Context, _ identifiers) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		})
		start := time.Now()
		err := hangs(t.Context(), first)
		if !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(cause, ErrTimeout) {
			t.Errorf("got %v with the cause %v", err, cause)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("the handler returned after %s", took)
		}
		stopped, stop := context.WithCancelCause(t.Context())
		stop(dynamiccontroller.ErrRunEnded)
		if err := hangs(stopped, first); errors.Is(err, ErrTimeout) || !errors.Is(cause, dynamiccontroller.ErrRunEnded) {
			t.Errorf("got %v with the cause %v after the run ended", err, cause)
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

func TestLogging_LogsOutcomesAtV1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for verbosity, want := range [][]string{
			nil,
			{
				`"level"=1 "msg"="Reconciled" "outcome"="done" "took"="1s"`,
				`"level"=1 "msg"="Reconciled" "outcome"="requeue after 1m0s" "took"="1s"`,
			},
		} {
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
			if !slices.Equal(lines, want) {
				t.Errorf("verbosity %d: logged %q, want %q", verbosity, lines, want)
			}
		}
	})
}

func TestConcurrency_LimitsEachClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		var mu sync.Mutex
		running, highest := map[string]int{}, map[string]int{}
		limited := Concurrency(2, identifiers.Namespace)(func(_ context.Context, id identifiers) error {
			mu.Lock()
			running[id.Namespace()]++
			highest[id.Namespace()] = max(highest[id.Namespace()], running[id.Namespace()])
			mu.Unlock()
			<-hold
			mu.Lock()
			running[id.Namespace()]--
			mu.Unlock()
			return nil
		})
		var requeued []error
		var group sync.WaitGroup
		for _, namespace := range []string{"a", "b"} {
			for range 5 {
				group.Go(func() {
					if err := limited(t.Context(), identifiers{NamespacedKey: namespace + "/x"}); err != nil {
						mu.Lock()
						defer mu.Unlock()
						requeued = append(requeued, err)
					}
				})
			}
		}
		synctest.Wait()
		mu.Lock()
		if len(requeued) != 6 || highest["a"] != 2 || highest["b"] != 2 {
			t.Errorf("%d calls were requeued and at most %v ran concurrently, want 6 and 2 of each class",
				len(requeued), highest)
		}
		mu.Unlock()
		close(hold)
		group.Wait()
	})
}

func TestConcurrency_PanicEndsTheCall(t *testing.T) {
	limited := Concurrency(1, identifiers.Namespace)
	func() {
		defer func() { _ = recover() }()
		_ = limited(func(context.Context, identifiers) error { panic("x") })(t.Context(), first)
	}()
	if err := limited(func(context.Context, identifiers) error { return nil })(t.Context(), first); err != nil {
		t.Errorf("got %v after a panic", err)
	}
}
