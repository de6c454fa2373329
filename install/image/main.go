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

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
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
	build                build
}

func parse(args []string, usage io.Writer) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.StringVar(&o.source, "source", "..", "the `DIRECTORY` of the module")
	flags.StringVar(&o.output, "output", "../bin/image", "the `DIRECTORY` for the image")
	flags.StringVar(&o.push, "push", "",
		"also push the image to this `REPOSITORY:TAG`, with the credentials of docker login")
	flags.StringVar(&o.build.version, "version", "", "the `VERSION` that the binary prints (default: unknown)")
	flags.StringVar(&o.build.commit, "commit", "", "the `COMMIT` that the binary prints")
	date := flags.String("date", "1970-01-01T00:00:00Z", "the `TIME` of the commit, in RFC 3339 format")
	architectures := flags.String("architectures", "amd64,arm64", "the `ARCHITECTURES`, separated by commas")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.build.date, err = time.Parse(time.RFC3339, *date); err != nil {
		return o, fmt.Errorf("--date: %w", err)
	}
	o.build.date = o.build.date.UTC()
	if o.build.version == "" {
		o.build.version = "unknown"
	}
	if _, err := name.NewTag(repository + ":" + o.build.version); err != nil {
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
	var images []platformImage
	for _, arch := range o.architectures {
		fmt.Fprintf(log, "building the binary for linux/%s\n", arch)
		file := filepath.Join(o.output, fileName(arch))
		if err := o.build.compile(ctx, o.source, arch, file, log); err != nil {
			return err
		}
		built, err := o.build.newImage(file, arch)
		if err != nil {
			return fmt.Errorf("image for linux/%s: %w", arch, err)
		}
		images = append(images, built)
	}
	index := o.build.newIndex(images)
	if err := write(o.output, o.build.version, index, images); err != nil {
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
	return push(ctx, o.push, index, log)
}

func push(ctx context.Context, to string, index v1.ImageIndex, log io.Writer) error {
	tag, err := name.NewTag(to, name.StrictValidation)
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "pushing to %s\n", tag)
	err = remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return fmt.Errorf("push to %s: %w", tag, err)
	}
	return nil
}

// fileName returns the name of the binary for an architecture, which is also the prefix of the names of other files.
func fileName(arch string) string { return "dynamic-controller-linux-" + arch }
