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

// How long the whole demonstration may take. The lease of what is deployed lasts longer.
const (
	atMost         = 50 * time.Second
	atMostDeployed = 5 * time.Minute
)

func main() {
	var o options
	flag.BoolVar(&o.stay, "stay", false, "apply the Blueprint and stay until Ctrl-C")
	flag.StringVar(&o.binary, "binary", "bin/dynamic-controller", "the platform's `FILE`")
	flag.StringVar(&o.log, "log", "bin/demo.log", "where the replicas' logs go: the `FILE` with a number put before its extension")
	flag.StringVar(&o.namespace, "namespace", metav1.NamespaceSystem, "the platform's own `NAMESPACE`, which has its lease, and its Pods if it is deployed")
	flag.StringVar(&o.platformKubeconfig, "platform-kubeconfig", "", "the `FILE` that the platform is given, if it is not to be who the demonstration is")
	flag.StringVar(&o.deployed, "deployed", "", "start no platform and take the one that runs in the cluster; the `COMMAND` kills one of its Pods, given its namespace and name")
	flag.StringVar(&o.transcript, "transcript", "", "also write the lines of the demonstration to the `FILE`")
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

// interruptedCode is what a shell makes of a SIGINT.
const interruptedCode = 130

// options are what the command line says.
type options struct {
	stay                                                 bool
	binary, log, namespace, platformKubeconfig, deployed string
	transcript                                           string
}

// demonstrate does so, and puts everything away after it whatever came of it.
func demonstrate(ctx context.Context, o options) (err error) {
	out := io.Writer(os.Stdout)
	if o.transcript != "" {
		file, createErr := os.Create(o.transcript)
		if createErr != nil {
			return fmt.Errorf("the transcript: %w", createErr)
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		out = io.MultiWriter(os.Stdout, file)
	}
	say := sayer(out, time.Now())
	if _, err := exec.LookPath(cmp.Or(o.deployed, o.binary)); err != nil {
		return fmt.Errorf("the platform: %w", err)
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
		err = play(working, say, c)
	} else {
		limit := atMost
		if o.deployed != "" {
			limit = atMostDeployed
		}
		var stop context.CancelFunc
		working, stop = context.WithTimeoutCause(working, limit, fmt.Errorf("the demonstration took longer than %s", limit))
		defer stop()
		err = tell(working, say, c, p)
	}
	if ctx.Err() != nil {
		return nil // what was not seen then says nothing
	}
	return err
}

// platform starts the platform, or takes the one that there is.
func (o options) platform(ctx context.Context, say func(string, ...any), c *theCluster, failed context.CancelCauseFunc) (platform, error) {
	if o.deployed != "" {
		p, err := findDeployed(ctx, c.kube, o.namespace, o.deployed)
		if err != nil {
			return nil, err
		}
		say("taking the platform that runs as %d Pods in namespace %s", len(p.byName), o.namespace)
		return p, nil
	}
	if err := c.ownTheLease(ctx); err != nil {
		return nil, err
	}
	p := &processes{binary: o.binary, kubeconfig: cmp.Or(o.platformKubeconfig, c.kubeconfig), namespace: o.namespace, failed: failed}
	if o.stay {
		p.mayDie = say
	}
	if err := startProcesses(p, o.log); err != nil {
		return nil, err
	}
	say("%d replicas of %s run: %s", replicas, o.binary, p)
	say("they elect a leader with %s", strings.Join(electionFlags, " "))
	return p, nil
}

// endsOf shows what each replica wrote last.
func endsOf(logs map[string]*logFile) string {
	var ends strings.Builder
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		fmt.Fprintf(&ends, "\nthe end of the log of %s:\n%s", name, logs[name].end())
	}
	return ends.String()
}

// sayer returns a function that writes a line to out, with the time since start.
func sayer(out io.Writer, start time.Time) func(format string, args ...any) {
	return func(format string, args ...any) {
		fmt.Fprintf(out, "%5.1fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
}
