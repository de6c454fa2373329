package integration

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

// pausedWatches holds back all watch events of a process while the watches are paused.
type pausedWatches struct {
	mu      sync.Mutex    // guards resumed
	resumed chan struct{} // closed when the watches are resumed; nil before the first pause
}

// pause holds back events until resume is called.
func (p *pausedWatches) pause() (resume func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resumed = make(chan struct{})
	return sync.OnceFunc(func() { close(p.resumed) })
}

func (p *pausedWatches) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil && isWatch(r) {
			response.Body = &pausedBody{ReadCloser: response.Body, watches: p, closed: r.Context().Done()}
		}
		return response, err
	})
}

type pausedBody struct {
	io.ReadCloser
	watches *pausedWatches
	closed  <-chan struct{}
}

func (b *pausedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.watches.mu.Lock()
	resumed := b.watches.resumed
	b.watches.mu.Unlock()
	if resumed != nil {
		select {
		case <-resumed:
		case <-b.closed:
		}
	}
	return n, err
}

// takeover describes when the leader is killed, and the state of the next leader's cache.
type takeover struct {
	phase, write int // the leader is killed after this write of this phase; never if write is 0
	// hasChange reports whether the next leader's cache contains the user's change in the phase when the takeover begins.
	// At that time, the cache contains none of the previous leader's writes in the phase.
	hasChange bool
}

// run runs all phases of a parent's life while a leader reconciles the parent. When the leader is killed, a standby
// whose cache lags by two seconds takes over. The method returns how many writes the first leader made in each phase,
// and whether that leader was killed.
func (w takeover) run(l *lifecycle) (writes []int, killed bool) {
	l.Helper()
	const lag = 2 * time.Second
	firstWatches, secondWatches := &pausedWatches{}, &pausedWatches{}
	first, second := l.start(firstWatches.wrap), l.start(secondWatches.wrap)
	before := 0
	first.lead()
	for i, current := range l.phases() {
		second.awaitCache()
		tookOver := make(chan struct{})
		isTakeover := i == w.phase && w.write > 0
		if !isTakeover {
			current.begin()
		} else {
			first.trap.Set(apiproxy.Call.IsWrite, w.write, true)
			resumeFirst := firstWatches.pause()
			if w.hasChange {
				current.begin()
				second.awaitCache()
			}
			resumeSecond := secondWatches.pause()
			go func() {
				defer close(tookOver)
				<-first.exited
				second.lead()
				time.AfterFunc(lag, resumeSecond)
			}()
			if !w.hasChange {
				current.begin()
			}
			resumeFirst()
		}
		l.await(fmt.Sprintf("phase %d is complete", i), func() phase {
			first.mustRun()
			second.mustRun()
			return current
		})
		switch {
		case isTakeover && first.trap.Caught() == nil:
			return writes, false
		case isTakeover:
			<-tookOver // the leader's last write can complete the phase before the takeover
		}
		all := first.proxy.Calls()
		n := 0
		for _, call := range all[before:] {
			if call.IsWrite() {
				n++
			}
		}
		writes, before = append(writes, n), len(all)
		// By the time the lagging cache has caught up, the new leader must have undone any wrong writes that it based on
		// outdated objects.
		second.awaitCache()
		l.await(fmt.Sprintf("phase %d is still complete", i), func() phase { return current })
	}
	return writes, first.hasExited()
}

// Each subtest kills the leader after one of the leader's writes. For two seconds, the next leader's cache lacks the
// previous leader's writes and, in about half of the cases, also the user's change. The next leader must not create
// anything twice or restore what was removed, and the final state must be the same in all subtests.
func TestHandlers_StandbyTakesOverWithALaggingCache(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newSetting(h)
	token := s.newAccount()
	writes, _ := takeover{}.run(s.newLifecycle(h, token))
	t.Logf("writes in each phase of a lifecycle: %v", writes)
	var takeovers []takeover
	for i, n := range writes {
		for write := 1; write <= n; write++ {
			takeovers = append(takeovers, takeover{i, write, true})
			if i > 0 { // without the first phase's change, the cache would not contain the parent
				takeovers = append(takeovers, takeover{i, write, false})
			}
		}
	}
	takeovers = sample(t, takeovers)
	var killed atomic.Int64
	t.Run("each in turn", func(t *testing.T) {
		for _, w := range takeovers {
			name := fmt.Sprintf("after write %d of phase %d, has the change: %t", w.write, w.phase, w.hasChange)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				own := *h
				own.T = t
				if _, wasKilled := w.run(s.newLifecycle(&own, token)); wasKilled {
					killed.Add(1)
				}
			})
		}
	})
	t.Logf("%d lifecycles, %d of them with a takeover", len(takeovers), killed.Load())
	if killed.Load() < int64(len(takeovers)/2) {
		t.Error("the leader was killed in fewer than half of the lifecycles")
	}
}
