package main

import (
	"context"
	"fmt"
	"net/url"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

func etcdCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "etcd --dir DIR",
		Short: "Run only the etcd of a control plane that was up once, on the port and data that it had",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, at, lock, err := openPart(path, etcdPart)
			if err != nil {
				return err
			}
			defer lock.release()
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return runEtcd(ctx, d, at)
		},
	}
	dirFlag(cmd, &path)
	return cmd
}

func runEtcd(ctx context.Context, d dir, at ports) error {
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
			sayReady(etcdPart, at.etcdURL())
			ready = nil
		case err := <-server.Err():
			return err
		case <-server.Server.StopNotify():
			return fmt.Errorf("etcd stopped by itself")
		case <-ctx.Done():
			closeEtcd(server)
			return nil
		}
	}
}

// closeEtcd gives requests a moment to end. etcd itself would wait for seconds as long as an API server watches it,
// and what it has acknowledged is in its log.
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
	config.ListenPeerUrls = nil // the only member has no peers
	config.EnableGRPCGateway = false
	config.ClientTLSInfo = transport.TLSInfo{
		CertFile:       d.cert(etcdCert),
		KeyFile:        d.key(etcdCert),
		TrustedCAFile:  d.cert(etcdCA),
		ClientCertAuth: true,
	}
	// The only member elects itself, after an election timeout when it has data.
	config.TickMs = 20
	config.ElectionMs = 200
	// What was written outlives a killed process in the kernel's page cache; only a machine that stops loses it.
	config.UnsafeNoFsync = true
	config.LogLevel = "warn"
	config.LogFormat = "console"
	return config, nil
}
