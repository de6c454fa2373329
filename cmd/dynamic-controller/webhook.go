package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/rest"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/servingcert"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/webhook"
	"github.com/dynamic-controller/engine/dynamiccontroller/replica"
)

// maxConnections is the maximum number of open connections to an endpoint with TLS. API servers and Prometheus reuse
// connections and therefore need only a few.
const maxConnections = 64

// registerWebhook serves the webhook on every replica and maintains its certificate on the leader. It returns the
// health checks and metrics of the webhook, or none if the webhook is disabled.
func registerWebhook(
	log logr.Logger, r *replica.Replica, cfg, fenced *rest.Config, o *options, review webhook.ReviewFunc,
) ([]healthz.HealthChecker, []prometheus.Collector, error) {
	if o.webhookAddress == noAddress {
		return nil, nil, nil
	}
	log = log.WithName("webhook")
	options := servingcert.Options{
		Namespace: o.platform.Namespace, Name: o.webhookName, Webhook: webhook.Name,
	}
	loader, err1 := servingcert.NewLoader(log, cfg, options)
	manager, err2 := servingcert.NewManager(log, fenced, options)
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, err
	}
	listener, err := listen(log, flagWebhook, o.webhookAddress)
	if err != nil {
		return nil, nil, err
	}
	listener = secure(listener, loader.GetCertificate)
	handler := webhook.NewHandler(log, review)
	mux := http.NewServeMux()
	mux.Handle(webhook.Path, handler)
	hasCertificate := check(log, "webhook", func() error {
		_, err := loader.GetCertificate(nil)
		return err
	})
	expiry := newExpiryMetric(loader.Expires)
	return []healthz.HealthChecker{hasCertificate}, []prometheus.Collector{expiry}, errors.Join(
		r.RegisterWithoutLeaderElection("webhook-certificate", loader),
		r.RegisterWithoutLeaderElection(flagWebhook, replica.RunFunc(func(ctx context.Context) error {
			defer handler.Stop()
			return serve(ctx, log, listener, mux)
		})),
		r.Register("webhook-certificates", manager, replica.ScopeLeader),
	)
}

// secure returns a TLS listener that limits the number of connections.
func secure(
	listener net.Listener, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error),
) net.Listener {
	// With HTTP/2, a client could send any number of requests over a single connection.
	return tls.NewListener(netutil.LimitListener(listener, maxConnections), &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: certificate,
	})
}
