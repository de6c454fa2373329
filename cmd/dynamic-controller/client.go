package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/explain"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/inspect"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/waiting"
)

// errNotHealthy is returned by commands that have printed why an object is not healthy.
var errNotHealthy = errors.New("not healthy")

const (
	// pluginName is the name under which the program runs as a kubectl plugin. It then offers only the commands for users.
	pluginName = "kubectl-blueprint"
	// completionName is the name under which kubectl runs the program to complete the arguments of the plugin.
	completionName = "kubectl_complete-blueprint"
)

// isPlugin reports whether the program was started as a kubectl plugin.
func isPlugin(program string) bool {
	name := strings.TrimSuffix(filepath.Base(program), ".exe")
	return name == pluginName || name == completionName
}

// pluginArgs returns the arguments of the root command.
func pluginArgs(args []string) []string {
	if len(args) > 0 && strings.TrimSuffix(filepath.Base(args[0]), ".exe") == completionName {
		return append([]string{cobra.ShellCompRequestCmd}, args[1:]...)
	}
	return args[min(1, len(args)):]
}

// clientOptions contains the flags of commands that read from a cluster. The names of the flags match kubectl's.
type clientOptions struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
	output     string
}

func (o *clientOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Path to the kubeconfig file to use for CLI requests")
	flags := clientcmd.RecommendedConfigOverrideFlags("")
	flags.AuthOverrideFlags.Username.LongName, flags.AuthOverrideFlags.Password.LongName = "", "" // as in kubectl
	clientcmd.BindOverrideFlags(&o.overrides, f, flags)
	f.StringVarP(&o.output, "output", "o", "", "Output format: text, wide, json or yaml (default text)")
}

// config returns the configuration for the clients, and the namespace from the flag or the context.
func (o *clientOptions) config() (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &o.overrides)
	cfg, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, "", errors.New("no kubeconfig found: set --kubeconfig or $KUBECONFIG")
	}
	if err != nil {
		return nil, "", fmt.Errorf("load the kubeconfig: %w", err)
	}
	namespace, _, err := loader.Namespace()
	cfg.QPS, cfg.Burst = 50, 300 // as in kubectl
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg, namespace, err
}

// checkOutput returns an error if the output format is unknown.
func (o *clientOptions) checkOutput() error {
	switch o.output {
	case "", "text", "wide", "json", "yaml":
		return nil
	}
	return fmt.Errorf("--output: must be text, wide, json or yaml, got %q", o.output)
}

// deadlines returns the maximum time for a request and for a command. Both are the value of --request-timeout if it is
// set.
func deadlines(requestTimeout time.Duration) (request, command time.Duration) {
	const defaultForRequest, defaultForCommand = 10 * time.Second, time.Minute
	if requestTimeout > 0 {
		return requestTimeout, requestTimeout
	}
	return defaultForRequest, defaultForCommand
}

// newClient checks the connection and returns a client.
func newClient(ctx context.Context, cfg *rest.Config) (*inspect.Client, error) {
	if _, err := checkConnection(ctx, logr.Discard(), cfg, cfg.Timeout); err != nil {
		return nil, err
	}
	return inspect.New(cfg)
}

// get reads the object that the arguments name: TYPE/NAME or TYPE NAME. After a second, it writes to stderr what it
// is waiting for.
func (o *clientOptions) get(cmd *cobra.Command, args []string, options inspect.Options) (*explain.Object, error) {
	if err := o.checkOutput(); err != nil {
		return nil, err
	}
	typeName, name, _ := strings.Cut(strings.Join(args, "/"), "/")
	if typeName == "" || name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("%q: must be TYPE/NAME, for example blueprint/websites", strings.Join(args, " "))
	}
	cfg, namespace, err := o.config()
	if err != nil {
		return nil, err
	}
	request, command := deadlines(cfg.Timeout)
	cfg.Timeout = request
	ctx, cancel := context.WithTimeout(cmd.Context(), command)
	defer cancel()
	waits := waiting.Start(cmd.ErrOrStderr())
	defer waits.Stop()
	cfg.Wrap(waits.Wrap)
	c, err := newClient(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return c.Get(ctx, typeName, name, namespace, options)
}

// printAs writes value as JSON or YAML, or calls text.
func printAs(w io.Writer, format string, value any, text func()) error {
	switch format {
	case "json":
		var text strings.Builder
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(value); err != nil {
			return err
		}
		_, err := io.WriteString(w, escapeControls(text.String()))
		return err
	case "yaml":
		data, err := json.Marshal(value)
		if err == nil {
			data, err = yaml.JSONToYAML([]byte(escapeControls(string(data)))) // JSONToYAML rejects control characters
		}
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	}
	text()
	return nil
}

// escapeControls escapes the control characters that encoding/json does not escape. They occur only in strings, and
// could control a terminal.
func escapeControls(text string) string {
	const first, last = '\u007f', '\u009f'
	var escaped strings.Builder
	for _, r := range text {
		if r >= first && r <= last {
			fmt.Fprintf(&escaped, `\u%04x`, r)
			continue
		}
		escaped.WriteRune(r)
	}
	return escaped.String()
}

// complete completes TYPE/NAME.
func (o *clientOptions) complete(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	const timeout = 3 * time.Second
	typeName, _, hasType := strings.Cut(word, "/")
	switch {
	case len(args) > 1 || len(args) == 1 && hasType:
		return nil, cobra.ShellCompDirectiveNoFileComp
	case len(args) == 1:
		typeName = args[0]
	}
	cfg, namespace, err := o.config()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cfg.Timeout = timeout
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	c, err := newClient(ctx, cfg)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if len(args) == 0 && !hasType {
		return c.Types(ctx), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	names := c.Names(ctx, typeName, namespace)
	if len(args) == 0 {
		for i := range names {
			names[i] = typeName + "/" + names[i]
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// newClientCommand completes a command that has an object as its argument.
func newClientCommand(cmd *cobra.Command, o *clientOptions) *cobra.Command {
	const most = 2
	cmd.Args, cmd.ValidArgsFunction = cobra.RangeArgs(1, most), o.complete
	o.addFlags(cmd.Flags())
	completeFlags(cmd, o.complete)
	return cmd
}

// completeFlags completes the values of flags. complete completes TYPE/NAME.
func completeFlags(cmd *cobra.Command, complete cobra.CompletionFunc) {
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"text", "wide", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("namespace",
		func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return complete(cmd, []string{"namespaces"}, "")
		})
}

const clientHelp = `
TYPE is a plural, a singular, a kind or a short name, with or without the group. The objects are read with the
permissions of the user. Objects that the user cannot read are listed at the end. A command sends at most 200 requests
and ends after a minute, or after --request-timeout. After a second, it reports on stderr which request it is waiting
for.

The exit code is 0 if the object is healthy, 1 if it is not, and 2 if the usage is wrong or the object cannot be read.
It does not consider objects that the user cannot read.`

func newWhyCommand() *cobra.Command {
	o := &clientOptions{}
	return newClientCommand(&cobra.Command{
		Use:   "why TYPE/NAME",
		Short: "Explain why a Blueprint or an instance is not healthy",
		Long: `Explain why a Blueprint or an instance is not healthy. The first line names the most probable cause.
Lines that start with an arrow describe what to do.

The answer combines the conditions of the object and of its Blueprint, pauses, children that are not ready, nested
instances, finalizers that block a deletion, and the latest events. With -o wide, it contains all conditions and
children.
` + clientHelp,
		Example: `  # Explain why an instance is not ready
  dynamic-controller why website/flowers -n shop

  # Explain why a Blueprint is not served
  dynamic-controller why blueprint/websites

  # Print the most probable cause's reason
  dynamic-controller why website/flowers -o json | jq -r '.causes[0].reason'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			object, err := o.get(cmd, args, inspect.Options{Events: true})
			if err != nil {
				return err
			}
			report, w := explain.Explain(object, time.Now()), cmd.OutOrStdout()
			if err := printAs(w, o.output, report, func() {
				if o.output != "wide" {
					report.Shorten()
				}
				report.Print(w, o.output == "wide")
			}); err != nil {
				return err
			}
			if !report.Healthy {
				return errNotHealthy
			}
			return nil
		},
	}, o)
}

func newTreeCommand() *cobra.Command {
	o := &clientOptions{}
	return newClientCommand(&cobra.Command{
		Use:   "tree TYPE/NAME",
		Short: "Print the children of an instance, or the instances of a Blueprint",
		Long: `Print the children of an instance by stage, with their states, or the instances of a Blueprint.

The children in a stage are created when those that they refer to are ready. Nested instances are printed with their own
children.
` + clientHelp,
		Example: `  # Print the children of an instance
  dynamic-controller tree website/flowers -n shop

  # Print the instances of a Blueprint
  dynamic-controller tree blueprint/websites`,
		RunE: func(cmd *cobra.Command, args []string) error {
			object, err := o.get(cmd, args, inspect.Options{})
			if err != nil {
				return err
			}
			tree, w := explain.Tree(object, time.Now()), cmd.OutOrStdout()
			isHealthy := tree.IsHealthy()
			if err := printAs(w, o.output, tree, func() {
				if object.IsBlueprint() && o.output != "wide" {
					tree.Shorten()
				}
				tree.Print(w)
			}); err != nil {
				return err
			}
			if !isHealthy {
				return errNotHealthy
			}
			return nil
		},
	}, o)
}
