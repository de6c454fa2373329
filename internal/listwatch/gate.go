package listwatch

import (
	"context"
	"sync"
	"time"
)

// maxUnanswered limits how many lists wait for a response at the same time. Without a limit, each request for which no
// connection has room dials another one: 1,000 types opened 1,433 connections, because net/http dials for all waiting
// requests, although a connection has room for 100 to 250 of them.
const maxUnanswered = 32

// maxUnansweredWatches is the same for watches. They are answered sooner than lists. After a lost connection, those of
// all types should be open again within Tolerance.
const maxUnansweredWatches = 256

// maxTurn limits how long a request counts toward the limit. If the lists of n types hang, those of the others are thus
// delayed by n/32 seconds.
const maxTurn = time.Second

// Gate limits how many requests of several Loops wait for a response at the same time.
type Gate struct{ lists, watches chan struct{} }

// NewGate returns a gate for Loops that use the same client.
func NewGate() *Gate {
	return &Gate{lists: make(chan struct{}, maxUnanswered), watches: make(chan struct{}, maxUnansweredWatches)}
}

// enter waits until a request may be sent. The request counts until leave is called, or for at most maxTurn. Watches do
// not wait for lists, so that a type that has just been listed does not miss its tolerance. A nil Gate does not wait.
func (g *Gate) enter(ctx context.Context, r request) (leave func(), err error) {
	if g == nil {
		return func() {}, nil
	}
	turns := g.lists
	if r == watchRequest {
		turns = g.watches
	}
	select {
	case turns <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	free := sync.OnceFunc(func() { <-turns })
	timer := time.AfterFunc(maxTurn, free)
	return func() {
		timer.Stop()
		free()
	}, nil
}
