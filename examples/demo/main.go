package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The maximum duration of the demonstration, which is longer for deployed replicas because of their longer lease.
const (
	maxDuration         = 2 * time.Minute
	maxDurationDeployed = 5 * time.Minute
)

func main() {
	var o options
	flag.BoolVar(&o.stay, "stay", false, "apply the Blueprint and wait for Ctrl-C")
	flag.StringVar(&o.binary, "binary", "bin/dynamic-controller", "the `FILE` of the platform's binary")
	flag.StringVar(&o.log, "log", "bin/demo.log",
		"the `FILE` for the logs of the replicas; a number is inserted before its extension")
	flag.StringVar(&o.namespace, "namespace", "", "the `NAMESPACE` of the platform's lease and, if it is deployed, of "+
		"its Pods (default: "+ownNamespace+" on a temporary control plane, or else "+metav1.NamespaceSystem+")")
	flag.StringVar(&o.platformKubeconfig, "platform-kubeconfig", "",
		"the kubeconfig `FILE` of the platform, if it differs from the demonstration's kubeconfig")
	flag.StringVar(&o.deployed, "deployed", "",
		"use the platform that is deployed in the cluster; `COMMAND` NAMESPACE POD kills one of its Pods")
	flag.StringVar(&o.transcript, "transcript", "", "also write the output to the `FILE`")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := demonstrate(ctx, o)
	interrupted := ctx.Err() != nil
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	switch {
	case interrupted && !o.stay:
		fmt.Fprintln(os.Stderr, "demo: interrupted")
		os.Exit(interruptedCode)
	case err != nil:
		os.Exit(1)
	}
}

// interruptedCode is the exit code that a shell reports for a process terminated by SIGINT.
const interruptedCode = 130

// options contains the command-line options.
type options struct {
	stay                                                 bool
	binary, log, namespace, platformKubeconfig, deployed string
	transcript                                           string
}

// demonstrate runs the demonstration, and always cleans up afterwards.
func demonstrate(ctx context.Context, o options) (err error) {
	out := io.Writer(os.Stdout)
	if o.transcript != "" {
		file, createErr := os.Create(o.transcript)
		if createErr != nil {
			return fmt.Errorf("create the transcript: %w", createErr)
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		out = io.MultiWriter(os.Stdout, file)
	}
	say := printer(out, time.Now())
	if _, err := exec.LookPath(cmp.Or(o.deployed, o.binary)); err != nil {
		return fmt.Errorf("find the platform: %w", err)
	}
	c, err := openCluster(ctx, say, o.namespace)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()

	working, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	p, err := o.platform(working, say, c, failed)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w%s", err, endsOf(p.logs()))
		}
		err = cmp.Or(err, p.stop(say))
	}()

	if o.stay {
		err = stay(working, say, c, p)
	} else {
		limit := maxDuration
		if o.deployed != "" {
			limit = maxDurationDeployed
		}
		var stop context.CancelFunc
		working, stop = context.WithTimeoutCause(working, limit, fmt.Errorf("the demonstration took longer than %s", limit))
		defer stop()
		err = runChapters(working, say, c, p)
	}
	if ctx.Err() != nil {
		return nil // interrupted, so errors from conditions are irrelevant
	}
	return err
}

// platform starts the platform, or finds the deployed one.
func (o options) platform(
	ctx context.Context, say printf, c *demoCluster, failed context.CancelCauseFunc,
) (platform, error) {
	if o.deployed != "" {
		p, err := findDeployed(ctx, c.kube, c.namespace, o.deployed)
		if err != nil {
			return nil, err
		}
		say("using the platform that runs as %d Pods in namespace %s", len(p.byName), c.namespace)
		return p, nil
	}
	if err := c.claimLease(ctx); err != nil {
		return nil, err
	}
	p := &processes{
		binary: o.binary, kubeconfig: cmp.Or(o.platformKubeconfig, c.kubeconfig), namespace: c.namespace, failed: failed,
	}
	if o.stay {
		p.onExit = say
	}
	if o.stay && c.own != nil {
		var err error
		if p.diagnostics, err = newDiagnostics(o.log); err != nil {
			return nil, err
		}
	}
	if err := startProcesses(p, o.log); err != nil {
		return nil, err
	}
	say("%d replicas of %s run: %s", replicas, o.binary, p)
	say("they elect a leader with %s", strings.Join(electionFlags, " "))
	return p, nil
}

// endsOf returns the last log lines of each replica.
func endsOf(logs map[string]*logFile) string {
	var ends strings.Builder
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		fmt.Fprintf(&ends, "\nthe end of the log of %s:\n%s", name, logs[name].end())
	}
	return ends.String()
}

// printf formats and prints a line of output.
type printf func(format string, args ...any)

// printer returns a printf that writes to out, with the time since start.
func printer(out io.Writer, start time.Time) printf {
	return func(format string, args ...any) {
		fmt.Fprintf(out, "%5.1fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
}
