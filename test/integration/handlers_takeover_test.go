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

// stall is of all watches of a process: what they say is held back while it lasts, and then comes all at once.
type stall struct {
	mu   sync.Mutex
	over chan struct{} // closed when the stall is; nil if there is none
}

// begin begins the stall, until end is called.
func (s *stall) begin() (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = make(chan struct{})
	return sync.OnceFunc(func() { close(s.over) })
}

func (s *stall) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err == nil && isWatch(r) {
			answer.Body = &stalledBody{ReadCloser: answer.Body, stall: s, gone: r.Context().Done()}
		}
		return answer, err
	})
}

type stalledBody struct {
	io.ReadCloser
	stall *stall
	gone  <-chan struct{}
}

func (b *stalledBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.stall.mu.Lock()
	over := b.stall.over
	b.stall.mu.Unlock()
	if over != nil {
		select {
		case <-over:
		case <-b.gone:
		}
	}
	return n, err
}

// takeover is when the process that leads is killed, and what the cache of the one that follows shows then.
type takeover struct {
	phase, write int  // in which, and after which of its writes; never if 0
	seesChange   bool // what the user has changed, though not what the first did then; or nothing of either
}

// live lets a process live the parent's life until it is killed. Another one, which stands by, leads from that moment. Its
// cache shows what the first did in the phase two seconds later. It returns how many writes the first made, by phase.
func (w takeover) live(l *lifetime) (writes []int, died bool) {
	l.Helper()
	const longer = 2 * time.Second
	behind, stalled := &stall{}, &stall{}
	first, second := l.start(behind.wrap), l.start(stalled.wrap)
	leads := make(chan struct{})
	first.lead()
	before := 0
	for i, current := range l.phases() {
		second.awaitCache()
		isIt := i == w.phase && w.write > 0
		if !isIt {
			current.begin()
		} else {
			first.trap.Set(apiproxy.Call.IsWrite, w.write, true)
			goOn := behind.begin()
			if w.seesChange {
				current.begin()
				second.awaitCache()
			}
			caughtUp := stalled.begin()
			go func() {
				defer close(leads)
				<-first.ended
				second.lead()
				time.AfterFunc(longer, caughtUp)
			}()
			if !w.seesChange {
				current.begin()
			}
			goOn()
		}
		l.await(fmt.Sprintf("phase %d ends", i), func() phase {
			first.mustLive()
			second.mustLive()
			return current
		})
		switch {
		case isIt && first.trap.Caught() == nil:
			return writes, false
		case isIt:
			<-leads // it may have died of what ended the phase
		}
		all := first.proxy.Calls()
		n := 0
		for _, c := range all[before:] {
			if c.IsWrite() {
				n++
			}
		}
		writes, before = append(writes, n), len(all)
		// What was done by an old cache has been undone at the latest soon after.
		second.awaitCache()
		l.await(fmt.Sprintf("phase %d has ended", i), func() phase { return current })
	}
	return writes, first.isDead()
}

// A process is killed after each of its writes in turn, and one that stood by leads at once, with a cache that does not show
// for two seconds what the first did, or not even what the user did. It makes nothing twice, brings back nothing that is gone,
// and the end is right.
func TestHandlers_AStandbyTakesOverWithALateCache(t *testing.T) {
	h := newHarness(t)
	s := newSetting(h)
	token := s.account()
	writes, _ := takeover{}.live(s.lifetimeIn(h, token))
	t.Logf("the writes of a life, by phase: %v", writes)
	var lives []takeover
	for i, most := range writes {
		for n := 1; n <= most; n++ {
			lives = append(lives, takeover{i, n, true})
			if i > 0 { // or it has never heard of the parent
				lives = append(lives, takeover{i, n, false})
			}
		}
	}
	var deaths atomic.Int64
	t.Run("each in turn", func(t *testing.T) {
		for _, w := range lives {
			t.Run(fmt.Sprintf("after write %d of phase %d, change seen: %t", w.write, w.phase, w.seesChange), func(t *testing.T) {
				t.Parallel()
				own := *h
				own.T = t
				if _, died := w.live(s.lifetimeIn(&own, token)); died {
					deaths.Add(1)
				}
			})
		}
	})
	t.Logf("%d lives, in %d of which the leader was killed", len(lives), deaths.Load())
	if deaths.Load() < 25 {
		t.Error("the life has more writes")
	}
}
