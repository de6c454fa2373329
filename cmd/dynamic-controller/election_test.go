package main

import (
	"io"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
)

func TestFlagsOfLeaderElection(t *testing.T) {
	for name, test := range map[string]struct {
		args string
		want []string // in the error; none if empty
	}{
		"the defaults":                           {"", nil},
		"the demonstration's":                    {"--leader-elect-lease-duration=3s --leader-elect-renew-deadline=2s --leader-elect-retry-period=500ms", nil},
		"a lease that is too short for the rest": {"--leader-elect-lease-duration=12s", []string{"invalid --leader-elect-lease-duration 12s: must exceed --leader-elect-renew-deadline 10s + --leader-elect-retry-period 2s"}},
		"a part of a second":                     {"--leader-elect-lease-duration=15500ms", []string{"invalid --leader-elect-lease-duration 15.5s: must be whole seconds"}},
		"a deadline within one try":              {"--leader-elect-renew-deadline=1s", []string{"invalid --leader-elect-renew-deadline 1s: must exceed 1.2 x --leader-elect-retry-period"}},
		"zeros": {"--leader-elect-lease-duration=0 --leader-elect-retry-period=-1s",
			[]string{"--leader-elect-lease-duration must be above zero, not 0s", "--leader-elect-retry-period must be above zero, not -1s"}},
		"zeros that do not matter": {"--leader-elect=false --leader-elect-lease-duration=0", nil},
		"names that cannot be": {"--leader-elect-resource-name=A_B --leader-elect-resource-namespace=c.d",
			[]string{"invalid --leader-elect-resource-name A_B", "invalid --leader-elect-resource-namespace c.d"}},
		"no name":     {"--leader-elect-resource-name=", []string{"invalid --leader-elect-resource-name"}},
		"no duration": {"--leader-elect-retry-period=often", []string{"--leader-elect-retry-period"}},
	} {
		t.Run(name, func(t *testing.T) {
			var o electionOptions
			cmd := &cobra.Command{SilenceUsage: true, SilenceErrors: true, RunE: func(*cobra.Command, []string) error {
				_, err := o.replica(logr.Discard(), &rest.Config{Host: "https://example.com"}, 0)
				return err
			}}
			o.addFlags(cmd)
			cmd.SetArgs(strings.Fields(test.args))
			cmd.SetOut(io.Discard)
			err := cmd.Execute()
			if (err == nil) != (len(test.want) == 0) {
				t.Fatalf("got the error %v, want %q", err, test.want)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got the error %v, want %q", err, want)
				}
			}
			if err != nil && strings.Contains(err.Error(), "Options.") {
				t.Errorf("the error names what is no flag: %v", err)
			}
		})
	}
}
