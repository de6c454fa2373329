package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/status"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/ui"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/waiting"
)

// flagPort sets the local port of the page.
const flagPort = "port"

func newUICommand() *cobra.Command {
	o := &statusOptions{}
	port := 0
	cmd := newReplicaCommand(&cobra.Command{
		Use:   "ui",
		Short: "Serve a page about the leader to your browser",
		Long: `Serve a page about the leader to your browser, until Ctrl-C. The page shows the types, parked objects,
Blueprints with their dependencies, the leadership and errors, and refreshes itself. It changes nothing.

The page is served on 127.0.0.1. Its URL contains a secret: only those who know the URL can read the page. The status is
read with your token, which the browser does not receive. If the replica cannot be reached any longer, the command
connects to the new leader.
` + replicaHelp + `
The exit code is 0 after Ctrl-C, and 2 if the usage is wrong or the replica cannot be reached at the start.`,
		Example: `  # Serve the page about the leader
  dynamic-controller ui

  # Serve the page about one replica
  dynamic-controller ui --url https://localhost:8443 --certificate-authority ca.crt`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, o, nil)
	cmd.Flags().IntVar(&port, flagPort, 0, "the local `PORT` (default: a free port)")
	_ = cmd.Flags().MarkHidden("output")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return serveUI(cmd, o, port)
	}
	return cmd
}

// serveUI serves the page until the context of the command is cancelled.
func serveUI(cmd *cobra.Command, o *statusOptions, port int) error {
	ctx := cmd.Context()
	waits := waiting.Start(cmd.ErrOrStderr())
	r := newReconnecting(func(ctx context.Context) (replicaClient, error) {
		c, _, err := o.connect(ctx, waits.Wrap)
		return c, err
	})
	defer r.close()
	err := r.check(ctx)
	waits.Stop()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("--%s: %w", flagPort, err)
	}
	page := ui.NewLocal(listener.Addr(), r.get)
	fmt.Fprintf(cmd.OutOrStdout(), "%s\nOpen this URL in a browser on this host. Press Ctrl-C to stop.\n", page.URL())
	if err := serve(ctx, logr.Discard(), listener, page); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// reconnecting reads the status of a replica. After a failure, it connects again, because another replica may have
// become the leader.
type reconnecting struct {
	connect func(context.Context) (replicaClient, error)
	client  chan replicaClient // contains the client, or nil if not connected, unless a request is being sent
}

// replicaClient sends requests to one replica.
type replicaClient interface {
	Get(ctx context.Context, path string) (*http.Response, error)
	Close()
}

func newReconnecting(connect func(context.Context) (replicaClient, error)) *reconnecting {
	r := &reconnecting{connect: connect, client: make(chan replicaClient, 1)}
	r.client <- nil
	return r
}

// get returns the replica's response. The caller must close its body. Requests are sent one after another.
func (r *reconnecting) get(ctx context.Context) (response *http.Response, err error) {
	var c replicaClient
	select {
	case c = <-r.client:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { r.client <- c }()
	if c == nil {
		if c, err = r.connect(ctx); err != nil {
			c = nil
			return nil, err
		}
	}
	if response, err = c.Get(ctx, status.Path); err != nil {
		c.Close()
		c = nil
	}
	return response, err
}

// check returns an error if the status cannot be read.
func (r *reconnecting) check(ctx context.Context) error {
	const timeout = 30 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no response within %s", timeout))
	defer cancel()
	response, err := r.get(ctx)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		const most = 500
		text, _ := io.ReadAll(io.LimitReader(response.Body, most))
		return fmt.Errorf("the replica returned %s: %s", response.Status, text)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// close closes idle connections.
func (r *reconnecting) close() {
	if c := <-r.client; c != nil {
		c.Close()
	}
}
