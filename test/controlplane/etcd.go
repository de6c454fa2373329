package main

import (
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func etcdCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "etcd --dir DIR",
		Short: "Restart only the etcd server of a control plane, with the same port and data",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, at, lock, err := openComponent(path, etcdName)
			if err != nil {
				return err
			}
			defer lock.release()
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return runEtcd(ctx, d, at, lock)
		},
	}
	dirFlag(cmd, &path)
	return cmd
}

// A single member elects itself as the leader. If it has data, it does so only after the election timeout, which is
// therefore short.
const (
	etcdHeartbeatMillis = 20
	etcdElectionMillis  = 200
)
