//go:build !external

package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// checkPrograms returns nil because both servers are part of this binary.
func checkPrograms() error { return nil }

// serveAPIServer runs the API server until the process receives SIGTERM or SIGINT. kube-apiserver's command handles the
// signals.
func serveAPIServer(_ context.Context, flags []string, _ *pidFile) error {
	if err := exitWhenOrphaned(context.Background(), exit); err != nil {
		return err
	}
	server := app.NewAPIServerCommand()
	server.SilenceErrors = true
	server.SetArgs(flags)
	return server.Execute()
}

func runEtcd(ctx context.Context, d dir, at ports, _ *pidFile) error {
	if err := exitWhenOrphaned(context.Background(), exit); err != nil {
		return err
	}
	config, err := etcdConfig(d, at)
	if err != nil {
		return err
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	ready := server.Server.ReadyNotify()
	for {
		select {
		case <-ready:
			printReady(etcdName, at.etcdURL())
			ready = nil
		case err := <-server.Err():
			return err
		case <-server.Server.StopNotify():
			return fmt.Errorf("etcd stopped unexpectedly")
		case <-ctx.Done():
			closeEtcd(server)
			return nil
		}
	}
}

// closeEtcd closes the server but waits at most a second for active requests. Without this limit, etcd would wait for
// several seconds while an API server has open watches. All acknowledged writes are already in etcd's log.
func closeEtcd(server *embed.Etcd) {
	const grace = time.Second
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		server.Close()
	}()
	select {
	case <-closed:
	case <-time.After(grace):
	}
}

func etcdConfig(d dir, at ports) (*embed.Config, error) {
	clients, err := url.Parse(at.etcdURL())
	if err != nil {
		return nil, err
	}
	config := embed.NewConfig()
	config.Name = "controlplane"
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.Dir = d.path("etcd")
	config.ListenClientUrls = []url.URL{*clients}
	config.AdvertiseClientUrls = []url.URL{*clients}
	config.ListenPeerUrls = nil // A single member has no peers.
	config.EnableGRPCGateway = false
	config.ClientTLSInfo = transport.TLSInfo{
		CertFile:       d.cert(etcdCert),
		KeyFile:        d.key(etcdCert),
		TrustedCAFile:  d.cert(etcdCA),
		ClientCertAuth: true,
	}
	config.TickMs = etcdHeartbeatMillis
	config.ElectionMs = etcdElectionMillis
	// If the process is killed, written data survives in the kernel's page cache. The data is lost only if the machine
	// crashes.
	config.UnsafeNoFsync = true
	config.LogLevel = "warn"
	config.LogFormat = "console"
	return config, nil
}
