package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
)

// serviceRange is the IP range of Services. The first address belongs to the Service "kubernetes" in the namespace
// "default".
const serviceRange = "10.0.0.0/24"

var apiServerServiceIP = net.IPv4(10, 0, 0, 1)

func apiServerCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "apiserver --dir DIR",
		Short: "Restart only the API server of a control plane, with the same port and etcd",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, at, lock, err := openComponent(path, apiServerName)
			if err != nil {
				return err
			}
			defer lock.release()
			return runAPIServer(cmd.Context(), d, at, lock)
		},
	}
	dirFlag(cmd, &path)
	return cmd
}

// runAPIServer runs the API server until the process receives SIGTERM or SIGINT.
func runAPIServer(ctx context.Context, d dir, at ports, lock *pidFile) error {
	config, err := d.adminConfig()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		if waitServing(ctx, config) == nil {
			printReady(apiServerName, at.apiServerURL())
		}
	}()
	defer func() {
		cancel()
		<-waited
	}()
	return serveAPIServer(ctx, apiServerFlags(d, at), lock)
}

func apiServerFlags(d dir, at ports) []string {
	return []string{
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(at.APIServer),
		"--tls-cert-file=" + d.cert(apiServerCert),
		"--tls-private-key-file=" + d.key(apiServerCert),
		"--client-ca-file=" + d.cert(clusterCA),
		"--authorization-mode=RBAC",
		"--allow-privileged=true",
		"--service-cluster-ip-range=" + serviceRange,
		// Endpoints of the Service "kubernetes" must not be loopback addresses. Without this flag, the server exits.
		"--endpoint-reconciler-type=none",
		// Close watches during shutdown. By default, the server waits up to a minute for the clients to disconnect.
		"--shutdown-watch-termination-grace-period=1s",

		"--etcd-servers=" + at.etcdURL(),
		"--etcd-cafile=" + d.cert(etcdCA),
		"--etcd-certfile=" + d.cert(etcdClientCert),
		"--etcd-keyfile=" + d.key(etcdClientCert),

		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + d.path("pki", serviceAccountKey+".pub"),
		"--service-account-signing-key-file=" + d.key(serviceAccountKey),
		// This plugin rejects Pods whose service account does not exist, and no controller creates the account "default".
		"--disable-admission-plugins=ServiceAccount",

		// These flags pass the identity of the user to aggregated API servers.
		"--proxy-client-cert-file=" + d.cert(frontProxyCert),
		"--proxy-client-key-file=" + d.key(frontProxyCert),
		"--requestheader-client-ca-file=" + d.cert(frontProxyCA),
		"--requestheader-allowed-names=" + frontProxyCert,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
	}
}

// waitServing waits until the API server is ready and has created the namespace "default", which happens at about the
// same time. It returns an error only if ctx is cancelled first.
func waitServing(ctx context.Context, config *rest.Config) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
		const interval = 50 * time.Millisecond
		for !respondsOK(ctx, client, config.Host+path) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("API server does not respond to GET %s: %w", path, context.Cause(ctx))
			case <-time.After(interval):
			}
		}
	}
	return nil
}

func respondsOK(ctx context.Context, client *http.Client, url string) bool {
	const requestTimeout = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode == http.StatusOK
}
