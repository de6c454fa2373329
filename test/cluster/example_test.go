package cluster_test

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/dynamic-controller/engine/test/cluster"
)

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Stop()

	// The data survives a crash of the API server.
	if err := c.APIServer().Kill(); err != nil {
		fmt.Println(err)
		return
	}
	if err := c.APIServer().Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		fmt.Println(err)
		return
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(version)
	// Output: v1.37.2
}
