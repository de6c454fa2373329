package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/dynamic-controller/engine/test/cluster"
)

func main() {
	var where places
	flag.StringVar(&where.examples, "examples", "examples", "where the examples' manifests are, a `DIR`")
	flag.StringVar(&where.binaries, "binaries", "bin/examples", "where the examples' binaries are, a `DIR`")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := show(ctx, where, flag.Arg(0))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "show:", err)
		os.Exit(1)
	}
}

// show tells the example's story, and puts everything away after it whatever came of it.
func show(ctx context.Context, where places, name string) (err error) {
	story, found := stories[name]
	if !found {
		return fmt.Errorf("there is no example %q, but %s", name, strings.Join(slices.Sorted(maps.Keys(stories)), ", "))
	}
	c, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	return tell(ctx, os.Stdout, c, where, story)
}

// open takes the cluster of KUBECONFIG, or starts one if that is not set.
func open(ctx context.Context) (*cluster.Cluster, error) {
	if kubeconfig := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); kubeconfig != "" {
		fmt.Println("# on the cluster of KUBECONFIG=" + kubeconfig)
		return cluster.Connect(kubeconfig)
	}
	fmt.Println("# starting a control plane: kube-apiserver, etcd and the garbage collector")
	return cluster.Start(ctx, cluster.Options{WithControllers: true})
}
