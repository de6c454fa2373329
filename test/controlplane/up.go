package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

type upOptions struct {
	dir             string
	kubeconfig      string
	withControllers bool
	remove          bool
	fixed           ports
	readyTimeout    time.Duration
}

func upCommand() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up --dir DIR",
		Short: "Run etcd and the API server until told to end",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return up(cmd.Context(), o) },
	}
	dirFlag(cmd, &o.dir)
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "write the administrator's kubeconfig here too, beside DIR/kubeconfig")
	f.BoolVar(&o.withControllers, "with-controllers", false,
		"also run Kubernetes' garbage collector, namespace controller and cluster-role aggregation")
	f.BoolVar(&o.remove, "rm", false, "remove DIR at the end; it must be new or empty")
	const orKept = " on 127.0.0.1 (default: the one it had in DIR, else a free one)"
	f.IntVar(&o.fixed.APIServer, "secure-port", 0, "the API server's port"+orKept)
	f.IntVar(&o.fixed.Etcd, "etcd-port", 0, "etcd's port"+orKept)
	f.DurationVar(&o.readyTimeout, "ready-timeout", time.Minute, "give up if the servers are not ready by then")
	return cmd
}

// up returns nil when it was told to end, or when its parent has ended.
func up(ctx context.Context, o upOptions) error {
	started := time.Now()
	// Whoever read stdout or stderr may be gone, and there is still something to end.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	parent, err := parentPID()
	if err != nil {
		return err
	}
	wg.Go(func() {
		if waitOrphaned(ctx, parent, os.Getppid) {
			fmt.Fprintln(os.Stderr, "controlplane: the process that started this one has ended, so it ends too")
			cancel()
		}
	})

	d, release, err := claimDir(o)
	if err != nil {
		return err
	}
	defer release()
	if err := d.prepare(o); err != nil {
		return err
	}
	servers, err := startServers(ctx, d, o.readyTimeout)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer servers.stop()

	if o.withControllers {
		stopControllers, err := startControllers(ctx, d)
		if err != nil {
			return err
		}
		// Before the servers end, lest the controllers' log is full of refused connections. Not all requests of theirs end with
		// a context: one that a paused server leaves without an answer would hold them up for half a minute.
		defer func() {
			servers.resume()
			stopControllers()
		}()
	}
	fmt.Printf("ready in %.1fs, kubeconfig %s\n", time.Since(started).Seconds(), d.kubeconfig())
	servers.reportDeaths(ctx)
	return nil
}

// claimDir makes the directory this process' own, until release.
func claimDir(o upOptions) (d dir, release func(), err error) {
	d, err = openDir(o.dir)
	if err != nil {
		return "", nil, err
	}
	if o.remove {
		switch empty, err := d.empty(); {
		case err != nil:
			return "", nil, fmt.Errorf("directory %s: %w", d, err)
		case !empty:
			return "", nil, fmt.Errorf("--rm: directory %s is not empty", d)
		}
	}
	lock, err := lockPIDFile(d.pidFile("up"), 0)
	if err != nil {
		return "", nil, fmt.Errorf("up on %s: %w", d, err)
	}
	return d, func() {
		if o.remove {
			if err := os.RemoveAll(string(d)); err != nil {
				fmt.Fprintln(os.Stderr, "controlplane:", err)
			}
		}
		lock.release()
	}, nil
}

// prepare fills the directory with what the servers need.
func (d dir) prepare(o upOptions) error {
	for _, part := range []string{etcdPart, apiServerPart} {
		lock, err := lockPIDFile(d.pidFile(part), partHandover)
		if err != nil {
			return fmt.Errorf("%s on %s: %w", part, d, err)
		}
		lock.release()
	}
	ports, err := d.choosePorts(o.fixed)
	if err != nil {
		return err
	}
	if err := d.ensurePKI(); err != nil {
		return err
	}
	return d.writeKubeconfig(ports.apiServerURL(), o.kubeconfig)
}

type servers struct {
	etcd, apiServer *child
}

// startServers starts both at once, since the API server takes longer than etcd to get to where it needs the other,
// and returns when both are ready. If it returns an error, neither runs.
func startServers(ctx context.Context, d dir, timeout time.Duration) (_ *servers, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("--ready-timeout %s has passed", timeout))
	defer cancel()
	s := &servers{}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if s.etcd, err = startChild(d, etcdPart); err != nil {
		return nil, err
	}
	if s.apiServer, err = startChild(d, apiServerPart); err != nil {
		return nil, err
	}
	if err := s.etcd.waitReady(ctx); err != nil {
		return nil, err
	}
	// An API server that has lost etcd waits for it, so look at both.
	ready := make(chan error, 1)
	go func() { ready <- s.apiServer.waitReady(ctx) }()
	select {
	case err := <-ready:
		return s, err
	case <-s.etcd.ended:
		cancel()
		<-ready
		return nil, s.etcd.waitReady(ctx)
	}
}

// resume continues servers that are paused.
func (s *servers) resume() {
	for _, c := range []*child{s.etcd, s.apiServer} {
		_ = c.cmd.Process.Signal(syscall.SIGCONT) // it may be gone by now
	}
}

// stop ends the API server first: without etcd it would not end gently.
func (s *servers) stop() {
	const grace = 3 * time.Second
	s.apiServer.stop(grace)
	s.etcd.stop(grace)
}

// reportDeaths says so when a server ends, and goes on: a test that killed one will start it again.
func (s *servers) reportDeaths(ctx context.Context) {
	etcd, apiServer := s.etcd.ended, s.apiServer.ended
	for {
		select {
		case <-ctx.Done():
			return
		case <-etcd:
			etcd = nil
			s.etcd.reportDeath()
		case <-apiServer:
			apiServer = nil
			s.apiServer.reportDeath()
		}
	}
}

func (c *child) reportDeath() {
	fmt.Fprintf(os.Stderr, "controlplane: %s (process %d) has ended: %s; start it again with: %s\n",
		c.part, c.cmd.Process.Pid, c.cmd.ProcessState, c.cmd)
}
