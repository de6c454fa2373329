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
	"slices"
	"strings"
	"syscall"

	"github.com/dynamic-controller/engine/install/internal/platform"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run executes a command. It writes results to out, and progress and usage to log.
func run(ctx context.Context, args []string, out, log io.Writer) error {
	commands := map[string]func(context.Context, *flag.FlagSet, []string, io.Writer, io.Writer) error{
		"build": buildCommand, "verify": verifyCommand, "push": pushCommand, "tag": tagCommand,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("the first argument must be build, verify, push or tag")
	}
	flags := flag.NewFlagSet("release "+args[0], flag.ContinueOnError)
	flags.SetOutput(log)
	return commands[args[0]](ctx, flags, args[1:], out, log)
}

func buildCommand(ctx context.Context, flags *flag.FlagSet, args []string, _, log io.Writer) error {
	s, b := source{}, builder{log: log}
	flags.StringVar(&s.version, "version", "", "the `VERSION`, for example v0.1.0")
	flags.StringVar(&s.dir, "source", "..", "the `DIRECTORY` of the module")
	flags.BoolVar(&s.allowDirty, "allow-dirty", false, "allow changes that are not committed")
	output := flags.String("output", "", "the `DIRECTORY` for the release (default ../bin/release/VERSION)")
	flags.StringVar(&b.repository, "repository", platform.Name, "the `REPOSITORY` that the image is pushed to")
	flags.StringVar(&b.builderID, "builder", "",
		"the `URI` of the builder in the provenance (default: the Makefile of the release)")
	key := flags.String("key", "", "a `FILE` with the private key to sign with, in PEM format")
	targets := flags.String("targets", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64",
		"the `PLATFORMS`, separated by commas")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if b.targets, err = parseTargets(*targets); err != nil {
		return err
	}
	if *key != "" { // before the build, which takes minutes
		if b.key, err = readPrivateKey(*key); err != nil {
			return fmt.Errorf("--key: %w", err)
		}
	}
	if err := s.open(ctx); err != nil {
		return err
	}
	if *output == "" {
		*output = filepath.Join(s.dir, "bin", "release", s.version)
	}
	b.source = s
	return b.build(ctx, *output)
}

func parseTargets(text string) (targets []platform.Target, err error) {
	for name := range strings.SplitSeq(text, ",") {
		system, arch, ok := strings.Cut(name, "/")
		if !ok {
			return nil, fmt.Errorf("--targets: %q is not an operating system and an architecture, such as linux/amd64",
				name)
		}
		targets = append(targets, platform.Target{OS: system, Arch: arch})
	}
	if !slices.ContainsFunc(targets, func(t platform.Target) bool { return t.OS == "linux" }) {
		return nil, errors.New("--targets: linux is missing, which the image needs")
	}
	return targets, nil
}

func verifyCommand(_ context.Context, flags *flag.FlagSet, args []string, out, _ io.Writer) error {
	dir := flags.String("directory", "", "the `DIRECTORY` of the release")
	key := flags.String("key", "", "a `FILE` with the public key, in PEM format; without it, signatures are not verified")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" {
		return errors.New("--directory is required")
	}
	count, err := verifyChecksums(*dir)
	if err != nil {
		return err
	}
	signed := "the signatures were not verified, because --key is not set"
	if *key != "" {
		public, err := readPublicKey(*key)
		if err != nil {
			return fmt.Errorf("--key: %w", err)
		}
		if err := verifySignatures(*dir, public); err != nil {
			return err
		}
		signed = "signed with " + *key
	}
	fmt.Fprintf(out, "%d files have the right checksums; %s\n", count, signed)
	return nil
}

func pushCommand(ctx context.Context, flags *flag.FlagSet, args []string, out, _ io.Writer) error {
	dir := flags.String("directory", "", "the `DIRECTORY` of the release")
	to := flags.String("to", "", "push the image to this `REPOSITORY:TAG`, with the credentials of docker login")
	charts := flags.String("charts", "", "push the chart to this `REPOSITORY` as an OCI artifact, if it is set")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" || *to == "" {
		return errors.New("--directory and --to are required")
	}
	return push(ctx, *dir, *to, *charts, out)
}

func tagCommand(ctx context.Context, flags *flag.FlagSet, args []string, out, _ io.Writer) error {
	s := source{}
	flags.StringVar(&s.version, "version", "", "the `VERSION`, for example v0.1.0")
	flags.StringVar(&s.dir, "source", "..", "the `DIRECTORY` of the module")
	modules := flags.String("modules", "test,cmd/dynamic-controller,examples/controller-runtime",
		"the directories of the nested `MODULES` to tag, separated by commas. A module must follow those that it replaces")
	check := flags.Bool("check", false, "only check that the tags exist")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := s.open(ctx); err != nil {
		return err
	}
	nested := strings.Split(*modules, ",")
	if *check {
		return s.checkTags(ctx, nested, out)
	}
	return s.tag(ctx, nested, out)
}
