package replica_test

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// On one's own machine there is nobody to share a lease with.
func Example() {
	r, err := replica.New(&rest.Config{Host: "https://example.com"}, replica.Options{LeaderElection: ptr.To(false)})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	watching := make(chan struct{})
	_ = r.RegisterWithoutLeaderElection("watches", replica.RunFunc(func(ctx context.Context) error {
		_, leads := replica.Term(ctx)
		fmt.Println("on every replica:", leads)
		close(watching)
		<-ctx.Done()
		fmt.Println("the watches end after the work")
		return nil
	}))
	_ = r.Register("work", replica.RunFunc(func(ctx context.Context) error {
		<-watching
		term, _ := replica.Term(ctx)
		fmt.Println("on the leader: term", term)
		cancel()
		<-ctx.Done()
		fmt.Println("the work ends:", context.Cause(ctx))
		return nil
	}))
	fmt.Println(r.Run(ctx))
	fmt.Println(r.Run(ctx))
	// Output:
	// on every replica: false
	// on the leader: term 1
	// the work ends: the replica ends: context canceled
	// the watches end after the work
	// <nil>
	// run the replica: it has run and ended, and a Replica runs once
}
