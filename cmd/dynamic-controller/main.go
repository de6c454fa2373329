package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/explain"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/offline"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/uninstall"
)

func main() {
	klog.SetLogger(logr.Discard()) // commands return errors; the run command sets its own logger
	ctx, stop := withSignals(context.Background())
	root := newCommand(os.Args[0])
	root.SetArgs(pluginArgs(os.Args))
	cmd, err := root.ExecuteContextC(ctx)
	stop()
	if err != nil && !errors.Is(err, offline.ErrProblems) && !errors.Is(err, errNotHealthy) {
		printError(os.Stderr, root.DisplayName(), err)
	}
	os.Exit(exitCode(cmd, err))
}

// printError writes a command's error. Errors can contain text written by other users, for example in a response from
// the API server.
func printError(w io.Writer, program string, err error) {
	fmt.Fprintln(w, explain.Printable(program+": "+err.Error()))
}

// exitCode returns the exit code of a command. For all commands except run, the code distinguishes problems in the
// files or with the object from other errors, such as wrong usage.
func exitCode(cmd *cobra.Command, err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, offline.ErrProblems), errors.Is(err, errNotHealthy), errors.Is(err, uninstall.ErrRunning),
		errors.Is(err, uninstall.ErrIncomplete):
		return 1
	case cmd.Name() == "run":
		return 1
	}
	return 2
}

// newCommand returns the root command. If the program runs as a kubectl plugin, the root command has only the commands
// for users of a platform.
func newCommand(program string) *cobra.Command {
	root := &cobra.Command{
		Use:           "dynamic-controller",
		Short:         "A platform for resource types that users define at runtime",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	if isPlugin(program) {
		root.Use, root.Short = pluginName, "Check and explain Blueprints and their instances"
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl blueprint"}
	} else {
		root.AddCommand(newRunCommand(run), newConfigCommand(), newUninstallCommand())
	}
	root.AddCommand(newWhyCommand(), newTreeCommand(), newStatusCommand(), newTypesCommand(), newParkedCommand(),
		newUICommand(), newValidateCommand(), newRenderCommand(), newVersionCommand())
	return root
}

// newRunCommand returns a command that validates its options and calls run.
func newRunCommand(run func(context.Context, *options) error) *cobra.Command {
	cmd, o := newCommandWithOptions(run)
	cmd.Use, cmd.Short = "run", "Serve Blueprints until SIGTERM or SIGINT"
	cmd.Long = "Serve Blueprints until SIGTERM or SIGINT."
	cliflag.SetUsageAndHelpFunc(cmd, o.sections, helpColumns)
	return cmd
}

// helpColumns is the maximum length of a line of the help.
const helpColumns = 120

// newCommandWithOptions returns a command with the flags of the run command. It reads the configuration file, validates
// the options, and calls run.
func newCommandWithOptions(run func(context.Context, *options) error) (*cobra.Command, *options) {
	o := &options{}
	cmd := &cobra.Command{
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.loadConfig(cmd.Flags()); err != nil {
				return err
			}
			o.complete()
			if err := o.validate(); err != nil {
				return err
			}
			return run(cmd.Context(), o)
		},
	}
	sections := o.flags()
	for _, name := range sections.Order {
		cmd.Flags().AddFlagSet(sections.FlagSets[name])
	}
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(cmp.Or(formerFlags[name], name))
	})
	return cmd, o
}

// withSignals returns a context that is cancelled when the process receives SIGTERM or SIGINT. A second signal
// terminates the process.
func withSignals(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		// Restore the default signal handling before cancelling the context, so that a second signal is never lost.
		// signal.NotifyContext restores it only when its stop function is called.
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
