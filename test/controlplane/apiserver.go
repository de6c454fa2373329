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
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// Services get addresses from here; the first is the API server's own, "kubernetes" in namespace default.
const serviceRange = "10.0.0.0/24"

var apiServerServiceIP = net.IPv4(10, 0, 0, 1)

func apiServerCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "apiserver --dir DIR",
		Short: "Run only the API server of a control plane that was up once, on the port and etcd that it had",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, at, lock, err := openPart(path, apiServerPart)
			if err != nil {
				return err
			}
			defer lock.release()
			return runAPIServer(cmd.Context(), d, at)
		},
	}
	dirFlag(cmd, &path)
	return cmd
}

// runAPIServer ends on SIGTERM and SIGINT, which kube-apiserver's command handles itself.
func runAPIServer(ctx context.Context, d dir, at ports) error {
	config, err := d.adminConfig()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		if waitServing(ctx, config) == nil {
			sayReady(apiServerPart, at.apiServerURL())
		}
	}()
	defer func() {
		cancel()
		<-waited
	}()
	server := app.NewAPIServerCommand()
	server.SilenceErrors = true
	server.SetArgs(apiServerFlags(d, at))
	return server.Execute()
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
		// Endpoints of the service "kubernetes" may not be loopback addresses: without this the server exits.
		"--endpoint-reconciler-type=none",
		// Ends watches when the server is told to end. By default it waits a minute for their clients to go.
		"--shutdown-watch-termination-grace-period=1s",

		"--etcd-servers=" + at.etcdURL(),
		"--etcd-cafile=" + d.cert(etcdCA),
		"--etcd-certfile=" + d.cert(etcdClientCert),
		"--etcd-keyfile=" + d.key(etcdClientCert),

		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + d.path("pki", serviceAccountKey+".pub"),
		"--service-account-signing-key-file=" + d.key(serviceAccountKey),
		// No controller makes the service account "default", without which this plugin refuses Pods.
		"--disable-admission-plugins=ServiceAccount",

		// Aggregated API servers learn from these who asked.
		"--proxy-client-cert-file=" + d.cert(frontProxyCert),
		"--proxy-client-key-file=" + d.key(frontProxyCert),
		"--requestheader-client-ca-file=" + d.cert(frontProxyCA),
		"--requestheader-allowed-names=" + frontProxyCert,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
	}
}

// waitServing returns once the API server says that it is ready and has made the namespace "default", which it does
// at about the same time. It returns an error only when ctx ends first.
func waitServing(ctx context.Context, config *rest.Config) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
		const pause = 50 * time.Millisecond
		for !answersOK(ctx, client, config.Host+path) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("the API server does not answer %s: %w", path, context.Cause(ctx))
			case <-time.After(pause):
			}
		}
	}
	return nil
}

func answersOK(ctx context.Context, client *http.Client, url string) bool {
	const tooLong = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, tooLong)
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
