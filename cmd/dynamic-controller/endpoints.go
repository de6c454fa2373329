package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
)

const (
	flagHealth  = "health-probe-bind-address"
	flagMetrics = "metrics-bind-address"
	// noEndpoint is the address that is not listened on.
	noEndpoint = "0"
)

// endpointOptions are what the command line says about the HTTP endpoints.
type endpointOptions struct{ health, metrics string }

func (o *endpointOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.health, flagHealth, ":8081",
		"the `ADDRESS` of /livez and /readyz; with port 0 any port is taken, and logged; 0 alone for none")
	f.StringVar(&o.metrics, flagMetrics, noEndpoint, "the `ADDRESS` of /metrics, likewise")
}

// serve begins to serve what there is to serve, until end is called.
func (o *endpointOptions) serve(log logr.Logger, h health, of []prometheus.Collector) (end func(), err error) {
	probes, err := listen(log, flagHealth, o.health, healthHandler(h))
	if err != nil {
		return nil, err
	}
	endProbes := probes.serve()
	measures, err := listen(log, flagMetrics, o.metrics, metricsHandler(of...))
	if err != nil {
		endProbes()
		return nil, err
	}
	endMeasures := measures.serve()
	return func() {
		endMeasures()
		endProbes()
	}, nil
}

// endpoint is an HTTP server that listens, and serves when it is run.
type endpoint struct {
	log      logr.Logger
	name     string
	listener net.Listener
	handler  http.Handler
}

// listen listens on the address that the flag gives, or returns nil if it gives none.
func listen(log logr.Logger, flag, address string, handler http.Handler) (*endpoint, error) {
	if address == noEndpoint {
		return nil, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s %s: %w (another address, or 0 for none, lets several replicas run on one machine)", flag, address, err)
	}
	log.Info("listening", "endpoint", flag, "address", listener.Addr().String())
	return &endpoint{log: log, name: flag, listener: listener, handler: handler}, nil
}

// serve serves until the func that it returns is called, which returns when nothing of it is left.
func (e *endpoint) serve() (end func()) {
	if e == nil {
		return func() {}
	}
	const (
		tooLong = 5 * time.Second // for a request, from its first byte to its last
		grace   = time.Second
	)
	server := &http.Server{Handler: e.handler, ReadHeaderTimeout: tooLong, ReadTimeout: tooLong, IdleTimeout: time.Minute}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(e.listener); !errors.Is(err, http.ErrServerClosed) {
			e.log.Error(err, "an endpoint fails", "endpoint", e.name)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		<-ended
	}
}

// health is what the probes ask.
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

func metricsHandler(of ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(of...)
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return mux
}
