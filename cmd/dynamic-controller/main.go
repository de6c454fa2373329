package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
)

func main() {
	ctx, stop := withSignals(context.Background())
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dynamic-controller:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "dynamic-controller",
		Short:         "A platform for resource types that users define at runtime",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newRunCommand(run))
	return root
}

// newRunCommand returns a command that validates its options and calls run.
func newRunCommand(run func(context.Context, *options) error) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve Blueprints until SIGTERM or SIGINT",
		Long:  "Serve Blueprints until SIGTERM or SIGINT.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.complete()
			if err := o.validate(); err != nil {
				return err
			}
			return run(cmd.Context(), o)
		},
	}
	const columns = 120
	sections := o.flags()
	for _, name := range sections.Order {
		cmd.Flags().AddFlagSet(sections.FlagSets[name])
	}
	cliflag.SetUsageAndHelpFunc(cmd, sections, columns)
	return cmd
}

// withSignals returns a context that is cancelled by the first SIGTERM or SIGINT. The next one terminates the process.
func withSignals(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		// The default signal handling is restored before the context is cancelled. With signal.NotifyContext, a second signal
		// could be lost in between.
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(fmt.Errorf("received signal %q", s))
		case <-ctx.Done():
			signal.Stop(signals)
		}
	}()
	return ctx, func() { cancel(nil) }
}
