package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version and commit are set at link time: see VERSION_LDFLAGS in the Makefile. Without them, the build information of
// Go is used.
var version, commit string

// buildInfo describes the program.
type buildInfo struct {
	Version    string `json:"version"`
	Commit     string `json:"commit,omitempty"`
	Modified   bool   `json:"modified,omitempty"` // whether the commit had local changes
	CommitDate string `json:"commitDate,omitempty"`
	Kubernetes string `json:"kubernetes"` // the version of the Kubernetes libraries
	GoVersion  string `json:"goVersion"`
	Platform   string `json:"platform"`
}

// ownBuildInfo returns the build information of this program.
func ownBuildInfo() buildInfo {
	built, ok := debug.ReadBuildInfo()
	if !ok {
		built = &debug.BuildInfo{}
	}
	return newBuildInfo(built)
}

func newBuildInfo(built *debug.BuildInfo) buildInfo {
	info := buildInfo{
		Version:   cmp.Or(version, built.Main.Version, "unknown"),
		GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	vcs := map[string]string{}
	for _, setting := range built.Settings {
		vcs[setting.Key] = setting.Value
	}
	info.Commit = cmp.Or(commit, vcs["vcs.revision"])
	if info.Commit == vcs["vcs.revision"] {
		info.CommitDate, info.Modified = vcs["vcs.time"], vcs["vcs.modified"] == "true"
	}
	for _, module := range built.Deps {
		if module.Path == "k8s.io/client-go" {
			info.Kubernetes = module.Version
		}
	}
	return info
}

// String returns the line that the version command prints.
func (i buildInfo) String() string {
	commit := cmp.Or(i.Commit, "unknown")
	if i.Modified {
		commit += ", modified"
	}
	return fmt.Sprintf("dynamic-controller %s (commit %s, client-go %s, %s, %s)", i.Version, commit,
		cmp.Or(i.Kubernetes, "unknown"), i.GoVersion, i.Platform)
}

func newVersionCommand() *cobra.Command {
	output := ""
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of the program",
		Long:  "Print the version of the program, of the Kubernetes libraries and of Go.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch output {
			case "", "text", "json", "yaml":
			default:
				return fmt.Errorf("--output: must be text, json or yaml, got %q", output)
			}
			w, info := cmd.OutOrStdout(), ownBuildInfo()
			return printAs(w, output, info, func() {
				fmt.Fprintln(w, info)
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format: text, json or yaml (default text)")
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"text", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
