package typewatch

import (
	"context"
	"sync"
)

// news is what is heard from outside of whether the type is served, for the goroutine that runs the watch.
type news struct {
	wake chan struct{} // has room for one

	mu   sync.Mutex // guards what follows
	gone bool
	end  context.CancelFunc // of the attempt that goes on
}

func newNews() news {
	return news{wake: make(chan struct{}, 1), end: func() {}}
}

func (n *news) appeared() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *news) vanished() {
	n.mu.Lock()
	n.gone = true
	n.end()
	n.mu.Unlock()
	n.appeared() // so that it is not waited for
}

// attempt returns a context that vanished ends. What appeared before counts no more: the attempt finds out itself.
func (n *news) attempt(ctx context.Context) (context.Context, context.CancelFunc) {
	select {
	case <-n.wake:
	default:
	}
	ctx, cancel := context.WithCancel(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.end = cancel
	if n.gone {
		cancel()
	}
	return ctx, cancel
}

// takeVanished tells whether the type vanished since it was asked last.
func (n *news) takeVanished() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	gone := n.gone
	n.gone = false
	return gone
}
