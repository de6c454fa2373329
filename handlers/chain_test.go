package handlers

import (
	"context"
	"slices"
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
