package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

const inputsLabel = "io.dynamic-controller.kindnode.inputs"

// imageInputs returns the hash of an image's inputs, or "" if the image does not exist.
func imageInputs(ctx context.Context, image string) string {
	format := fmt.Sprintf("{{ index .Config.Labels %q }}", inputsLabel)
	label, err := command{args: []string{"docker", "image", "inspect", "--format", format, image}}.output(ctx)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(label)
}

// loadImage creates an image with one layer from the root file system of the node and loads it into the Engine.
func (b *builder) loadImage(ctx context.Context, tag, inputs string) error {
	file := filepath.Join(b.work, "node.tar")
	archive, err := newImageArchive(file, runtime.GOARCH)
	if err != nil {
		return err
	}
	defer os.Remove(file)
	defer archive.discard()
	root, err := archive.addTar(func(out io.Writer) error {
		tar := exec.CommandContext(ctx, "tar", "--directory", b.nodeDir(), "--numeric-owner", "--create", ".")
		tar.Stdout = out
		return tar.Run()
	})
	if err != nil {
		return err
	}
	if err := archive.addImage(tag, root, imageConfig{
		Entrypoint: []string{"/usr/local/bin/entrypoint", "/sbin/init"},
		Labels:     map[string]string{inputsLabel: inputs},
		StopSignal: "SIGRTMIN+3", // The signal that shuts down systemd.
	}); err != nil {
		return err
	}
	if err := archive.close(); err != nil {
		return err
	}
	return command{args: []string{"docker", "load", "--input", file}}.run(ctx)
}
