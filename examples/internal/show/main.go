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
	var dirs directories
	flag.StringVar(&dirs.examples, "examples", "examples", "the `DIR` that contains the examples and their manifests")
	flag.StringVar(&dirs.binaries, "binaries", "bin/examples", "the `DIR` that contains the examples' binaries")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := show(ctx, dirs, flag.Arg(0))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "show:", err)
		os.Exit(1)
	}
}

// show runs the scenario of an example and deletes everything that it has created.
func show(ctx context.Context, dirs directories, name string) (err error) {
	scenario, found := scenarios[name]
	if !found {
		return fmt.Errorf("unknown example %q, want one of %s", name, strings.Join(slices.Sorted(maps.Keys(scenarios)), ", "))
	}
	c, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	return run(ctx, os.Stdout, c, dirs, scenario)
}

// open connects to the cluster in KUBECONFIG, or starts one if KUBECONFIG is not set.
func open(ctx context.Context) (*cluster.Cluster, error) {
	if kubeconfig := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); kubeconfig != "" {
		fmt.Println("# using the cluster from KUBECONFIG=" + kubeconfig)
		return cluster.Connect(kubeconfig)
	}
	fmt.Println("# starting a control plane: kube-apiserver, etcd and the garbage collector")
	return cluster.Start(ctx, cluster.Options{WithControllers: true})
}
