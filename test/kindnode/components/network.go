package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// runNodeNetwork configures the network of the Pods of one node. It writes the CNI configuration for the node's Pod
// CIDR, masquerades packets that leave the cluster, and maintains a route to the Pod CIDR of every other node. The
// nodes share one layer 2 network, so a route via the other node's address suffices.
func runNodeNetwork() {
	flags := flag.NewFlagSet("node-network", flag.ExitOnError)
	node := flags.String("node", "", "name of this node")
	podSubnet := flags.String("pod-subnet", "", "address range of all Pods of the cluster, in CIDR notation")
	configFile := flags.String("cni-config", "/etc/cni/net.d/10-node-network.conflist", "file to write")
	_ = flags.Parse(os.Args[1:])

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	n := nodeNetwork{node: *node, podSubnet: *podSubnet, configFile: *configFile}
	if err := n.run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		klog.ErrorS(err, "Network configuration failed")
		stop()
		os.Exit(1) //nolint:gocritic // The deferred stop has been called.
	}
}

type nodeNetwork struct {
	node       string
	podSubnet  string
	configFile string
}

func (n nodeNetwork) run(ctx context.Context) error {
	if _, _, err := net.ParseCIDR(n.podSubnet); err != nil {
		return fmt.Errorf("--pod-subnet: %w", err)
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	nodes := factory.Core().V1().Nodes()
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default: // A notification is already pending.
		}
	}
	if _, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { notify() },
		UpdateFunc: func(any, any) { notify() },
		DeleteFunc: func(any) { notify() },
	}); err != nil {
		return err
	}
	lister := nodes.Lister()
	factory.Start(ctx.Done())
	defer factory.Shutdown()

	// If the configuration fails, for example because an address is not reachable yet, it is retried after the next
	// period.
	const period = 5 * time.Second
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-ticker.C:
		}
		if err := n.configure(ctx, lister); err != nil {
			klog.ErrorS(err, "Network configuration failed, will retry")
		}
	}
}

func (n nodeNetwork) configure(ctx context.Context, lister listers.NodeLister) error {
	nodes, err := lister.List(labels.Everything())
	if err != nil {
		return err
	}
	var errs []error
	for _, node := range nodes {
		switch {
		case node.Spec.PodCIDR == "":
		case node.Name == n.node:
			errs = append(errs, n.configureThisNode(ctx, node))
		default:
			errs = append(errs, routeTo(node))
		}
	}
	return errors.Join(errs...)
}

func (n nodeNetwork) configureThisNode(ctx context.Context, node *corev1.Node) error {
	if err := masquerade(ctx, node.Spec.PodCIDR, n.podSubnet); err != nil {
		return err
	}
	return writeCNIConfig(n.configFile, node.Spec.PodCIDR)
}

// routeTo adds a route to the Pods of a node via the node's address.
func routeTo(node *corev1.Node) error {
	_, pods, err := net.ParseCIDR(node.Spec.PodCIDR)
	if err != nil {
		return fmt.Errorf("node %s: %w", node.Name, err)
	}
	for _, address := range node.Status.Addresses {
		if address.Type != corev1.NodeInternalIP {
			continue
		}
		route := &netlink.Route{Dst: pods, Gw: net.ParseIP(address.Address)}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("node %s: route to %s via %s: %w", node.Name, pods, address.Address, err)
		}
		return nil
	}
	return fmt.Errorf("node %s has no internal address", node.Name)
}

// masquerade replaces the source address of packets that leave the cluster with the node's address. Hosts outside the
// cluster cannot reach the addresses of Pods.
func masquerade(ctx context.Context, from, cluster string) error {
	rule := []string{
		"POSTROUTING", "-s", from, "!", "-d", cluster, "-m", "comment", "--comment", "node-network", "-j", "MASQUERADE",
	}
	if iptables(ctx, "-C", rule) == nil {
		return nil
	}
	return iptables(ctx, "-A", rule)
}

func iptables(ctx context.Context, operation string, rule []string) error {
	args := append([]string{"--wait", "--table", "nat", operation}, rule...)
	output, err := exec.CommandContext(ctx, "iptables", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("iptables %v: %w: %s", args, err, output)
	}
	return nil
}
