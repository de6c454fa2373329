package replica_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// Without leader election, as in local development, a replica leads from the start.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := run(ctx, cancel); err != nil {
		fmt.Println("error:", err)
	}
	// Output:
	// per-replica runnable has a term: false
	// leader-gated runnable in term 1
	// leader-gated runnable stopped: the replica is shutting down: context canceled
	// per-replica runnable stopped
}

func run(ctx context.Context, cancel func()) error {
	cfg := &rest.Config{Host: "https://example.com"}
	r, err := replica.New(logr.Discard(), cfg, replica.Options{LeaderElection: ptr.To(false)})
	if err != nil {
		return err
	}
	watching := make(chan struct{})
	err = errors.Join(
		r.RegisterWithoutLeaderElection("watches", replica.RunFunc(func(ctx context.Context) error {
			_, ok := replica.Term(ctx)
			fmt.Println("per-replica runnable has a term:", ok)
			close(watching)
			<-ctx.Done()
			fmt.Println("per-replica runnable stopped")
			return nil
		})),
		r.Register("controller", replica.RunFunc(func(ctx context.Context) error {
			<-watching
			term, _ := replica.Term(ctx)
			fmt.Println("leader-gated runnable in term", term)
			cancel()
			<-ctx.Done()
			fmt.Println("leader-gated runnable stopped:", context.Cause(ctx))
			return nil
		}), replica.ScopeLeader),
	)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
