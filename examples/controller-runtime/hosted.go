package main

import (
	"context"
	"errors"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// hosted is the engine as one of the manager's Runnables: its watches on every replica, its workers once the manager is
// elected.
//
// The two halves are one Runnable because of how the manager ends: those that need the lease end last, and would lose
// the watches beneath them. The lease is released when all have ended, however they were added.
type hosted struct {
	engine  *dynamiccontroller.DynamicController
	elected <-chan struct{}
}

// NeedLeaderElection tells the manager to start it on every replica.
func (hosted) NeedLeaderElection() bool { return false }

// Start returns when ctx has ended: first the handlers end, then the watches.
func (h hosted) Start(ctx context.Context) error {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	watches := make(chan error, 1)
	go func() { watches <- h.engine.RunWatches(watching) }()

	var err error
	select {
	case <-h.elected:
		err = h.engine.Run(ctx)
	case <-ctx.Done():
	}
	stop()
	return errors.Join(err, <-watches)
}
