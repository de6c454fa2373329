package listwatch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
)

// A request waits for its turn, but not longer than the turns of requests that hang.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		var leave [maxUnanswered]func()
		for i := range leave {
			leave[i] = enter(t, g)
		}
		began := time.Now()
		leave[0]()
		leave[0]() // counts once
		enter(t, g)
		if _, err := g.enter(t.Context(), watchRequest); err != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("waited %s although a request had been answered", waited)
		}
		ctx, cancel := context.WithTimeout(t.Context(), maxTurn/2)
		defer cancel()
		if _, err := g.enter(ctx, listRequest); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v, want one of the context while all turns are taken", err)
		}
		enter(t, g)
		if waited := time.Since(began); waited != maxTurn {
			t.Errorf("waited %s for hung requests, want %s", waited, maxTurn)
		}
		for _, late := range leave {
			late() // has no effect any more
		}
		synctest.Wait() // until all turns that end now have ended
		if n := len(g.lists); n != 1 {
			t.Errorf("%d requests count, want the last one", n)
		}
		time.Sleep(maxTurn)
		synctest.Wait()
		if n := len(g.lists); n != 0 {
			t.Errorf("%d requests count after a turn, want none", n)
		}
	})
}

func enter(t *testing.T, g *Gate) (leave func()) {
	t.Helper()
	leave, err := g.enter(t.Context(), listRequest)
	if err != nil {
		t.Fatal(err)
	}
	return leave
}

// takeAll takes all turns of lists. They end after maxTurn.
func takeAll(t *testing.T, g *Gate) {
	t.Helper()
	for range maxUnanswered {
		enter(t, g)
	}
}

// A loop sends no list before its turn. A command reaches it while it waits.
func TestLoop_WaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, srv, store := NewGate(), &script{began: time.Now()}, &things{}
		l := NewLoop(srv, store, Options{Log: logr.Discard(), Gate: g})
		takeAll(t, g)
		stop := start(l)
		synctest.Wait()
		if sent := srv.sent(); len(sent) > 0 {
			t.Errorf("sent %q before its turn", sent)
		}
		time.Sleep(maxTurn)
		synctest.Wait()
		if phase := l.State().Phase; phase != Synced || len(g.lists) > 0 || len(g.watches) > 0 {
			t.Errorf("%s; %d lists and %d watches count although they were answered", phase, len(g.lists), len(g.watches))
		}
		takeAll(t, g)
		l.Relist()
		synctest.Wait()
		sent := len(srv.sent())
		l.Vanish()
		synctest.Wait()
		if names, n := store.names(), len(srv.sent()); names != "" || n != sent {
			t.Errorf("the type is gone: objects %q, %d requests while it waits", names, n-sent)
		}
		stop()
	})
}
