package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/dynamic-controller/engine/install/internal/platform"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// options is the parsed command line.
type options struct {
	source, output, push string
	architectures        []string
	build                platform.Build
}

func parse(args []string, usage io.Writer) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.StringVar(&o.source, "source", "..", "the `DIRECTORY` of the module")
	flags.StringVar(&o.output, "output", "../bin/image", "the `DIRECTORY` for the image")
	flags.StringVar(&o.push, "push", "",
		"also push the image to this `REPOSITORY:TAG`, with the credentials of docker login")
	flags.StringVar(&o.build.Version, "version", "", "the `VERSION` that the binary prints (default: unknown)")
	flags.StringVar(&o.build.Commit, "commit", "", "the `COMMIT` that the binary prints")
	date := flags.String("date", "1970-01-01T00:00:00Z", "the `TIME` of the commit, in RFC 3339 format")
	architectures := flags.String("architectures", "amd64,arm64", "the `ARCHITECTURES`, separated by commas")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.build.Date, err = time.Parse(time.RFC3339, *date); err != nil {
		return o, fmt.Errorf("--date: %w", err)
	}
	o.build.Date = o.build.Date.UTC()
	if o.build.Version == "" {
		o.build.Version = "unknown"
	}
	if _, err := name.NewTag(platform.Name + ":" + o.build.Version); err != nil {
		return o, fmt.Errorf("--version: %w", err)
	}
	o.architectures = strings.Split(*architectures, ",")
	if o.push != "" {
		if _, err := name.NewTag(o.push, name.StrictValidation); err != nil {
			return o, fmt.Errorf("--push: %w", err)
		}
	}
	return o, nil
}

func run(ctx context.Context, args []string, log io.Writer) error {
	o, err := parse(args, log)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.output, 0o755); err != nil {
		return err
	}
	var images []platform.Image
	for _, arch := range o.architectures {
		fmt.Fprintf(log, "building the binary for linux/%s\n", arch)
		file := filepath.Join(o.output, fileName(arch))
		if err := o.build.Compile(ctx, o.source, platform.Target{OS: "linux", Arch: arch}, file, log); err != nil {
			return err
		}
		built, err := o.build.NewImage(file, arch)
		if err != nil {
			return fmt.Errorf("image for linux/%s: %w", arch, err)
		}
		images = append(images, built)
	}
	index := o.build.NewIndex(images)
	if err := o.write(index, images); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "%s contains the image %s\n", o.output, digest)
	if o.push == "" {
		return nil
	}
	fmt.Fprintf(log, "pushing to %s\n", o.push)
	return platform.Push(ctx, o.push, index)
}

// write replaces the layout, the archives and the SBOMs in the output directory.
func (o options) write(index v1.ImageIndex, images []platform.Image) error {
	if err := o.build.WriteLayout(filepath.Join(o.output, "oci"), index); err != nil {
		return err
	}
	tag, err := name.NewTag(platform.Name + ":" + o.build.Version)
	if err != nil {
		return fmt.Errorf("--version: %w", err)
	}
	for _, image := range images {
		base := filepath.Join(o.output, fileName(image.Arch))
		if err := os.WriteFile(base+platform.SBOMSuffix, image.SBOM, 0o644); err != nil {
			return err
		}
		if err := tarball.WriteToFile(base+".tar", tag, image.Image); err != nil {
			return err
		}
	}
	return nil
}

// fileName returns the name of the binary for an architecture, which is also the prefix of the names of other files.
func fileName(arch string) string { return platform.Name + "-linux-" + arch }
