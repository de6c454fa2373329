package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(log.Ltime)
	log.SetPrefix("kindnode: ")
	tag := flag.String("tag", "dynamic-controller/kind-node:"+kubernetesVersion, "name of the image")
	work := flag.String("work", "", "directory for intermediate results")
	mirror := flag.String("mirror", "http://deb.debian.org/debian", "Debian mirror")
	flag.Parse()
	if *work == "" {
		log.Fatal("--work: a directory is required")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := build(ctx, *tag, *work, *mirror); err != nil {
		stop()
		log.Fatal(err) //nolint:gocritic // The deferred stop has been called.
	}
}

// build builds the image unless the Engine has an image with the same inputs.
func build(ctx context.Context, tag, work, mirror string) error {
	source, err := os.Getwd() // go run is started in the directory of this module.
	if err != nil {
		return err
	}
	inputs, err := hashInputs(source, runtime.Version(), runtime.GOARCH)
	if err != nil {
		return err
	}
	if imageInputs(ctx, tag) == inputs {
		log.Printf("%s is up to date", tag)
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("building %s requires root, for debootstrap", tag)
	}
	work, err = filepath.Abs(work)
	if err != nil {
		return err
	}
	b := &builder{source: source, work: work, mirror: mirror}
	steps := []struct {
		name string
		run  func(context.Context) error
	}{
		{"Debian's root file system", b.debian},
		{"pause", b.pause},
		{"runc", b.runc},
		{"CNI plugins", b.cniPlugins},
		{"containerd", b.containerd},
		{"Kubernetes, etcd and CoreDNS (the first build takes many minutes)", b.components},
		{"crictl", b.crictl},
		{"container images", b.images},
		{"the node's root file system", b.nodeFiles},
		{"preloaded images", b.preload},
		{"the image " + tag, func(ctx context.Context) error { return b.loadImage(ctx, tag, inputs) }},
	}
	start := time.Now()
	for i, step := range steps {
		log.Printf("[%d/%d] %s", i+1, len(steps), step.name)
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	log.Printf("built %s in %s", tag, time.Since(start).Round(time.Second))
	return nil
}

// A builder runs the steps of the build, which write their results to the work directory.
type builder struct {
	source string // The directory of this module.
	work   string
	mirror string
}

func (b *builder) bin(name string) string { return filepath.Join(b.work, "bin", name) }

// debianDir returns the directory that contains the output of debootstrap. nodeDir returns the directory that contains
// the node's root file system.
func (b *builder) debianDir() string { return filepath.Join(b.work, "debian") }
func (b *builder) nodeDir() string   { return filepath.Join(b.work, "node") }

// archive returns the path of the archive that contains the container images to preload.
func (b *builder) archive() string { return filepath.Join(b.work, "images.tar") }
