package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// ofKind is a Blueprint of a type of its own, whose description takes so many KiB of memory by the platform's estimate, and
// 70 KiB more.
func ofKind(kind string, kibi int) string {
	const perByte = 20
	return fmt.Sprintf(`
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: %[1]ss.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: %[1]s
    schema: {type: object, description: %[2]q, properties: {spec: {type: object}}}
  resources: []`, kind, strings.Repeat("x", kibi<<10/perByte))
}

var (
	overBudget = is("Accepted", "False", "BudgetExceeded", "--max-blueprint-memory")
	accepted   = all(is("Accepted", "True"), is("Serving", "True"))
)

// The next Blueprint is refused when there is no memory left for it, and accepted when there is. Those that are served keep
// their places, whatever their age and also after a restart.
func TestABlueprintBeyondTheMemoryBudgetIsRefused(t *testing.T) {
	a := newAPI(t)
	run := func() *process {
		return startReplica(t, a.cluster.Kubeconfig(), "--leader-elect=false", "--"+flagMaxBlueprintMemory+"=500Ki")
	}
	p := run()
	p.waitReady()
	a.apply(ofKind("first", 130))
	a.waitBlueprint("firsts", accepted)
	a.apply(ofKind("large", 330))
	a.waitBlueprint("larges", overBudget)
	a.apply(ofKind("second", 130))
	a.waitBlueprint("seconds", accepted)
	a.apply(ofKind("third", 130))
	a.waitBlueprint("thirds", overBudget)

	// What is served does not grow beyond the budget, and stays as it was.
	a.apply(ofKind("second", 300))
	a.waitBlueprint("seconds", all(overBudget, is("Serving", "True", "generation 1")))

	p.kill()
	p = run()
	p.waitReady()
	for _, kind := range []string{"first", "second"} {
		a.apply("{apiVersion: GROUP/v1, kind: " + kind + ", metadata: {name: it}, spec: {}}")
		a.wait("GROUP/v1", kind, "it", is("Ready", "True"))
	}
	a.waitBlueprint("seconds", all(overBudget, is("Serving", "True", "generation 1")))
	for _, kind := range []string{"large", "third"} {
		a.waitBlueprint(kind+"s", overBudget)
		if served := p.logged(line{Msg: "Blueprint served", GVR: kind + "s"}); len(served) > 0 {
			t.Errorf("%s was served, in place of another one: %+v", kind, served)
		}
	}

	// The older of those that wait is too large for the place of the first one.
	a.delete("platform.example.com/v1alpha1", "Blueprint", "firsts."+a.group)
	a.waitBlueprint("seconds", all(accepted, is("Serving", "True", "generation 2")))
	a.waitBlueprint("larges", overBudget)
	a.waitBlueprint("thirds", overBudget)
	a.delete("platform.example.com/v1alpha1", "Blueprint", "seconds."+a.group)
	a.waitBlueprint("larges", accepted)
	a.waitBlueprint("thirds", overBudget)
	a.delete("platform.example.com/v1alpha1", "Blueprint", "larges."+a.group)
	a.waitBlueprint("thirds", accepted)
}

func TestTheMemoryBudgetFollowsTheMemoryLimit(t *testing.T) {
	for args, test := range map[string]struct {
		limit, want int64
		wantErr     string
	}{
		"":                             {limit: 200 << 20, want: 50 << 20},
		" ":                            {want: 256 << 20},
		"--max-blueprint-memory=64Mi":  {limit: 200 << 20, want: 64 << 20},
		"--max-blueprint-memory=0":     {limit: 200 << 20},
		"--max-blueprint-memory=large": {wantErr: "--max-blueprint-memory"},
	} {
		var o platformOptions
		cmd := &cobra.Command{RunE: func(*cobra.Command, []string) error { return nil }}
		o.addFlags(cmd)
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		switch err := o.limitBlueprints(test.limit); {
		case test.wantErr != "":
			if err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("%q: got the error %v", args, err)
			}
		case err != nil || o.MaxBlueprintMemory != test.want:
			t.Errorf("%q with a limit of %d: got %d, want %d: %v", args, test.limit, o.MaxBlueprintMemory, test.want, err)
		}
	}
}
