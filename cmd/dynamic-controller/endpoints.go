package main

import (
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// noAddress is the address that disables an endpoint.
const noAddress = "0"

// registerEndpoint listens on address and serves handler while the replica runs. flag is the name of the flag that sets
// the address.
func registerEndpoint(log logr.Logger, r *replica.Replica, flag, address string, handler http.Handler) error {
	if address == noAddress {
		return nil
	}
	listener, err := listen(log, flag, address)
	if err != nil {
		return err
	}
	return registerListener(log, r, flag, listener, handler)
}

// registerListener serves handler on a listener while the replica runs.
func registerListener(
	log logr.Logger, r *replica.Replica, flag string, listener net.Listener, handler http.Handler,
) error {
	return r.RegisterWithoutLeaderElection(flag, replica.RunFunc(func(ctx context.Context) error {
		return serve(ctx, log, listener, handler)
	}))
}

// listen listens on an address that was set with a flag.
func listen(log logr.Logger, flag, address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	log.Info("Listening", "endpoint", flag, "address", listener.Addr().String())
	return listener, nil
}

// serve handles requests until ctx is cancelled.
func serve(ctx context.Context, log logr.Logger, listener net.Listener, handler http.Handler) error {
	const (
		requestTimeout  = 5 * time.Second
		shutdownTimeout = time.Second
	)
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout, WriteTimeout: 2 * requestTimeout,
		IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: stdlog.New(errorLog{log}, "", 0),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close()
	}
	return <-served // the replica treats http.ErrServerClosed as a clean exit
}

// errorLog logs handler panics and connection accept failures as errors. It logs all other messages, such as failed TLS
// handshakes, at V(1), because clients can trigger those at any time.
type errorLog struct{ logr.Logger }

func (l errorLog) Write(line []byte) (int, error) {
	problem := strings.TrimSpace(string(line))
	switch {
	case strings.HasPrefix(problem, "http: panic serving"):
		l.Error(errors.New(problem), "Request panicked")
	case strings.HasPrefix(problem, "http: Accept error"):
		l.Error(errors.New(problem), "Connection not accepted")
	default:
		l.V(1).Info("Connection failed", "problem", problem)
	}
	return len(line), nil
}
