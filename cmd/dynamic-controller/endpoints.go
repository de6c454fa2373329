package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// noAddress is the address that disables an endpoint.
const noAddress = "0"

// registerEndpoint listens on address, and serves handler there while the replica runs. flag is the name of the flag
// that sets the address.
func registerEndpoint(log logr.Logger, r *replica.Replica, flag, address string, handler http.Handler) error {
	if address == noAddress {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	log.Info("Listening", "endpoint", flag, "address", listener.Addr().String())
	return r.RegisterWithoutLeaderElection(flag, replica.RunFunc(func(ctx context.Context) error {
		return serve(ctx, listener, handler)
	}))
}

// serve handles requests until ctx is cancelled.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	const (
		requestTimeout  = 5 * time.Second
		shutdownTimeout = time.Second
	)
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout, IdleTimeout: time.Minute,
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
	return <-served // http.ErrServerClosed counts as a clean end of a runnable
}

// health provides the results of the probes.
type health interface {
	Alive() error
	Ready() error
}

func healthHandler(h health) http.Handler {
	mux := http.NewServeMux()
	for path, check := range map[string]func() error{"/livez": h.Alive, "/readyz": h.Ready} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if err := check(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write([]byte("ok\n"))
		})
	}
	return mux
}

func metricsHandler(sources ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(sources...)
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux
}
