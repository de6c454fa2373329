package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/registry"

	"github.com/dynamic-controller/engine/install/internal/platform"
)

// push pushes the image of a release, and the chart unless charts is empty. It prints their names with the digests.
func push(ctx context.Context, dir, to, charts string, out io.Writer) error {
	tag, err := name.NewTag(to, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	var parent name.Repository
	if charts != "" {
		if parent, err = name.NewRepository(charts, name.StrictValidation); err != nil {
			return fmt.Errorf("--charts: %w", err)
		}
	}
	if err := pushImage(ctx, dir, tag, out); err != nil || charts == "" {
		return err
	}
	return pushChart(dir, parent, out)
}

func pushImage(ctx context.Context, dir string, tag name.Tag, out io.Writer) error {
	file, err := onlyFile(dir, platform.Name+"_*_image.tar")
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "release-push-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	archive, err := os.Open(file)
	if err != nil {
		return err
	}
	defer archive.Close()
	if err := extract(archive, work); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	index, err := layout.ImageIndexFromPath(work)
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	if len(manifest.Manifests) != 1 {
		return fmt.Errorf("%s contains %d images, want 1", file, len(manifest.Manifests))
	}
	digest := manifest.Manifests[0].Digest
	image, err := index.ImageIndex(digest)
	if err != nil {
		return err
	}
	if err := platform.Push(ctx, tag.Name(), image); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s@%s\n", tag.Context().Name(), digest)
	return nil
}

// pushChart pushes the chart as an OCI artifact, whose name and tag are those of the chart. It uses the credentials of
// docker login. Helm's client cannot be cancelled. A second push has the same digest, because the date in the artifact
// is that of the release.
func pushChart(dir string, parent name.Repository, out io.Writer) error {
	file, err := onlyFile(dir, platform.Name+"-*.tgz")
	if err != nil {
		return err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	chart, err := loader.LoadFile(file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	options := []registry.ClientOption{registry.ClientOptWriter(io.Discard)}
	if parent.Scheme() == "http" {
		options = append(options, registry.ClientOptPlainHTTP())
	}
	client, err := registry.NewClient(options...)
	if err != nil {
		return err
	}
	to := parent.Name() + "/" + chart.Name()
	date := registry.PushOptCreationTime(chart.ModTime.UTC().Format(time.RFC3339))
	pushed, err := client.Push(content, to+":"+chart.Metadata.Version, date)
	if err != nil {
		return fmt.Errorf("push the chart to %s: %w", to, err)
	}
	fmt.Fprintf(out, "%s@%s\n", to, pushed.Manifest.Digest)
	return nil
}

// onlyFile returns the only file in a directory that matches a pattern.
func onlyFile(dir, pattern string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return "", err
	}
	if len(files) != 1 {
		return "", fmt.Errorf("%s contains %d files with the name %s, want 1: %s", dir, len(files), pattern,
			strings.Join(files, ", "))
	}
	return files[0], nil
}
