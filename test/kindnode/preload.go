package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// preload imports the images into the data directory of the node's containerd, which is part of the node image. For the
// import, it runs containerd on this machine. The images are not unpacked, because a node stores their snapshots on its
// volume at /var. Docker copies the data to that volume when a node starts.
func (b *builder) preload(ctx context.Context) (err error) {
	state, err := os.MkdirTemp("", "kindnode")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
	config := filepath.Join(state, "config.toml")
	socket := filepath.Join(state, "containerd.sock")
	const readable = 0o644
	if err := os.WriteFile(config, fmt.Appendf(nil, preloadConfig,
		filepath.Join(b.nodeDir(), "var/lib/containerd"), filepath.Join(state, "state"), socket), readable); err != nil {
		return err
	}
	stop, err := b.startContainerd(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	return b.importImages(ctx, socket)
}

// An import without unpacking needs only the content and metadata plugins.
const preloadConfig = `
version = 3
root = %q
state = %q
disabled_plugins = [
  "io.containerd.cri.v1.images",
  "io.containerd.cri.v1.runtime",
  "io.containerd.grpc.v1.cri",
  "io.containerd.internal.v1.cri",
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.erofs",
]
[grpc]
  address = %q
`

// startContainerd starts containerd. The stop function stops it and waits until it has written its database.
func (b *builder) startContainerd(ctx context.Context, config string) (stop func() error, err error) {
	log, err := os.Create(filepath.Join(b.work, "containerd.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	containerd := exec.CommandContext(ctx, b.bin("containerd"), "--config", config)
	containerd.Stdout, containerd.Stderr = log, log
	if err := containerd.Start(); err != nil {
		return nil, err
	}
	return func() error {
		if err := containerd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		if err := containerd.Wait(); err != nil {
			return fmt.Errorf("containerd: %w; see %s", err, log.Name())
		}
		return nil
	}, nil
}

func (b *builder) importImages(ctx context.Context, socket string) error {
	const (
		timeout  = 2 * time.Minute
		interval = 200 * time.Millisecond
	)
	for deadline := time.Now().Add(timeout); ; time.Sleep(interval) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd has not created %s; see %s", socket, filepath.Join(b.work, "containerd.log"))
		}
	}
	ctr := []string{b.bin("ctr"), "--address", socket, "--namespace", "k8s.io", "images"}
	// The kubelet does not remove pinned images when a node's disk is full.
	load := append(ctr, "import", "--no-unpack", "--label", "io.cri-containerd.pinned=pinned", b.archive())
	if err := (command{args: load}).run(ctx); err != nil {
		return err
	}
	return command{args: append(ctr, "check")}.run(ctx)
}
