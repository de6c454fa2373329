package main

import (
	"context"
	"errors"

	"github.com/dynamic-controller/engine/dynamiccontroller"
)

// hosted runs the engine as a Runnable of a manager: its watches on every replica, and its workers once the manager has
// been elected.
//
// It is one Runnable instead of two because a manager stops Runnables that require leader election last. As a separate
// Runnable, the workers would outlive their watches. The manager releases the lease after all Runnables have returned,
// whether they require leader election or not.
type hosted struct {
	engine  *dynamiccontroller.DynamicController
	elected <-chan struct{}
}

// NeedLeaderElection makes the manager start the Runnable on every replica.
func (hosted) NeedLeaderElection() bool { return false }

// Start runs the engine until ctx is cancelled. After that, it stops the handlers, and then the watches.
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
