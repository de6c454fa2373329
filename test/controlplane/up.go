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
		Short: "Run etcd and the API server until interrupted",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return up(cmd.Context(), o) },
	}
	dirFlag(cmd, &o.dir)
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "",
		"additional file for the administrator's kubeconfig, which is always written to DIR/kubeconfig")
	f.BoolVar(&o.withControllers, "with-controllers", false,
		"also run Kubernetes' garbage collector, namespace controller and cluster role aggregation")
	f.BoolVar(&o.remove, "rm", false, "remove DIR on exit; DIR must be new or empty")
	const portDefault = " on 127.0.0.1 (default: the port stored in DIR, or a free port)"
	f.IntVar(&o.fixed.APIServer, "secure-port", 0, "port of the API server"+portDefault)
	f.IntVar(&o.fixed.Etcd, "etcd-port", 0, "port of etcd"+portDefault)
	f.DurationVar(&o.readyTimeout, "ready-timeout", 3*time.Minute, "maximum time until the servers are ready")
	return cmd
}

// up runs a control plane until the process is interrupted or its parent exits. It returns nil in both cases.
func up(ctx context.Context, o upOptions) error {
	started := time.Now()
	// The process that reads stdout or stderr can exit before the shutdown is complete.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	if err := checkPrograms(); err != nil {
		return err
	}
	parent, err := parentPID()
	if err != nil {
		return err
	}
	wg.Go(func() {
		if waitOrphaned(ctx, parent, os.Getppid) {
			fmt.Fprintln(os.Stderr, "controlplane: the parent process has exited, shutting down")
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
		// Stop the controllers before the servers, to keep errors about refused connections out of the controllers' log.
		// Resume paused servers first: some of the controllers' requests do not use a context, so a paused server would block
		// the shutdown for 30 seconds.
		defer func() {
			servers.resume()
			stopControllers()
		}()
	}
	fmt.Printf("ready in %.1fs, kubeconfig %s\n", time.Since(started).Seconds(), d.kubeconfig())
	servers.reportExits(ctx)
	return nil
}

// claimDir reserves the directory for this process until release is called.
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
		return "", nil, fmt.Errorf("up in %s: %w", d, err)
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

// prepare creates the files that the servers need.
func (d dir) prepare(o upOptions) error {
	for _, component := range []string{etcdName, apiServerName} {
		lock, err := lockPIDFile(d.pidFile(component), lockTimeout)
		if err != nil {
			return fmt.Errorf("%s in %s: %w", component, d, err)
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

// startServers starts both servers concurrently and waits until both are ready. By the time the API server needs etcd,
// etcd has started. If startServers returns an error, neither server is running.
func startServers(ctx context.Context, d dir, timeout time.Duration) (_ *servers, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("--ready-timeout of %s exceeded", timeout))
	defer cancel()
	s := &servers{}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if s.etcd, err = startChild(d, etcdName); err != nil {
		return nil, err
	}
	if s.apiServer, err = startChild(d, apiServerName); err != nil {
		return nil, err
	}
	if err := s.etcd.waitReady(ctx); err != nil {
		return nil, err
	}
	// The API server waits indefinitely for etcd, so this function must also detect the exit of etcd.
	ready := make(chan error, 1)
	go func() { ready <- s.apiServer.waitReady(ctx) }()
	select {
	case err := <-ready:
		return s, err
	case <-s.etcd.exited:
		cancel()
		<-ready
		return nil, s.etcd.waitReady(ctx)
	}
}

// resume continues servers that are paused.
func (s *servers) resume() {
	for _, c := range []*child{s.etcd, s.apiServer} {
		_ = c.signalGroup(syscall.SIGCONT) // The process may already have exited.
	}
}

// stop stops both servers. It stops the API server first, because the API server does not shut down gracefully without
// etcd.
func (s *servers) stop() {
	const grace = 3 * time.Second
	s.apiServer.stop(grace)
	s.etcd.stop(grace)
}

// reportExits prints a message when a server exits. It does not return before ctx is cancelled, because a test that has
// killed a server can restart the server.
func (s *servers) reportExits(ctx context.Context) {
	etcd, apiServer := s.etcd.exited, s.apiServer.exited
	for {
		select {
		case <-ctx.Done():
			return
		case <-etcd:
			etcd = nil
			s.etcd.reportExit()
		case <-apiServer:
			apiServer = nil
			s.apiServer.reportExit()
		}
	}
}

func (c *child) reportExit() {
	fmt.Fprintf(os.Stderr, "controlplane: %s (process %d) exited: %s; restart it with: %s\n",
		c.component, c.cmd.Process.Pid, c.cmd.ProcessState, c.cmd)
}
