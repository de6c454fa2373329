package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/config"
)

// formerFlags maps the former names of flags to their current names. The former names can still be used.
var formerFlags = map[string]string{"log-format": flagLogFormat, "verbosity": flagVerbosity}

// newConfigCommand returns a command that prints a configuration file with the effective values of all flags.
func newConfigCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd, o := newCommandWithOptions(func(_ context.Context, o *options) error {
		content, err := o.effective.YAML()
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(content)
		return err
	})
	cmd.Use, cmd.Short = "config", "Print the configuration of the run command"
	cmd.Long = `Print a configuration file for the run command, with the defaults and the values of --config and the other
flags. Values that depend on the environment, such as the namespace of the Pod, are not printed. The exit code is 2 if
the configuration is invalid.`
	cliflag.SetUsageAndHelpFunc(cmd, o.sections, helpColumns)
	return cmd
}

// loadConfig sets the flags that are not on the command line to the values in the configuration file. Invalid values
// are reported by validate. loadConfig must be called before complete.
func (o *options) loadConfig(flags *pflag.FlagSet) (err error) {
	file := &config.Configuration{}
	if o.configFile != "" {
		if file, err = config.Load(o.configFile); err != nil {
			return err
		}
	}
	for _, s := range file.Settings() {
		if flag := flags.Lookup(s.Flag); s.IsSet {
			o.setFromFile(flag, s)
		}
	}
	o.tracing = file.Tracing
	o.effective, err = config.New(func(name string) string { return flags.Lookup(name).Value.String() })
	o.effective.Tracing = o.tracing
	return err
}

// setFromFile sets a flag to the value in the configuration file, unless the flag is on the command line. Feature gates
// are merged: each gate on the command line overrides that in the file.
func (o *options) setFromFile(flag *pflag.Flag, s config.Setting) {
	set := func(text string) { _ = flag.Value.Set(text) } // a flagValue, which records the error
	if !flag.Changed {
		o.problems.sources[s.Flag] = strings.Join([]string{o.configFile, s.Path}, ": ")
		set(s.Text)
	} else if s.Flag == flagFeatureGates {
		overrides := flag.Value.String()
		set(s.Text)
		set(overrides)
	}
}
