package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
)

const (
	// keepPositive and keepNegative are how long positive and negative answers are cached. Negative answers expire
	// earlier, so that newly granted access takes effect soon.
	keepPositive = time.Minute
	keepNegative = 3 * time.Second

	requestTimeout = 10 * time.Second
)

// keep returns how long a positive or negative answer is cached.
func keep(positive bool) time.Duration {
	if positive {
		return keepPositive
	}
	return keepNegative
}

// errAbandoned is the result of a shared request if the context of the caller that sent it was cancelled. The other
// callers then send the request again.
var errAbandoned = errors.New("the request was cancelled")

// answers caches answers from the API server by question. Concurrent callers with the same question share one request.
// Errors are not cached.
type answers[Q comparable, A any] struct {
	clock    clock.PassiveClock
	keep     func(A) time.Duration
	cache    *lru.Cache // answer by question
	requests singleflight.Group
}

type answer[A any] struct {
	value A
	asked time.Time // time at which the request was sent
}

func newAnswers[Q comparable, A any](c clock.PassiveClock, keep func(A) time.Duration) *answers[Q, A] {
	return &answers[Q, A]{clock: c, keep: keep, cache: lru.New(maxAnswers)}
}

// get returns a cached answer or the result of ask.
func (a *answers[Q, A]) get(ctx context.Context, question Q, ask func(context.Context) (A, error)) (A, error) {
	for {
		if cached, found := a.cache.Get(question); found {
			if c := cached.(answer[A]); a.clock.Since(c.asked) < a.keep(c.value) {
				return c.value, nil
			}
		}
		request := a.requests.DoChan(fmt.Sprintf("%#v", question), func() (any, error) {
			asked := a.clock.Now()
			asking, cancel := context.WithTimeout(memory.Without(ctx), requestTimeout)
			defer cancel()
			value, err := ask(asking)
			switch {
			case err != nil && ctx.Err() != nil:
				return nil, errAbandoned
			case err != nil:
				return nil, err
			}
			a.cache.Add(question, answer[A]{value, asked})
			return value, nil
		})
		var none A
		select {
		case <-ctx.Done():
			return none, context.Cause(ctx)
		case result := <-request:
			switch {
			case result.Err == nil:
				return result.Val.(A), nil
			case ctx.Err() != nil:
				return none, context.Cause(ctx)
			case !errors.Is(result.Err, errAbandoned):
				return none, result.Err
			}
		}
	}
}
