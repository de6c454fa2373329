package main

import (
	"fmt"
	"strings"
	"testing"
)

// blueprintOfSize returns a Blueprint with its own type. The platform estimates that it needs kibi KiB for the
// description and 70 KiB for the rest.
func blueprintOfSize(kind string, kibi int) string {
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

// A Blueprint that exceeds the budget is rejected until there is enough memory. Served Blueprints keep their memory,
// regardless of their age and after a restart.
func TestMemoryBudget_RejectsFurtherBlueprints(t *testing.T) {
	a := newAPI(t)
	run := func() *process {
		return startReplica(t, a.cluster.Kubeconfig(), "--leader-elect=false", "--"+flagMaxBlueprintMemory+"=500Ki")
	}
	p := run()
	p.waitReady()
	a.apply(blueprintOfSize("first", 130))
	a.waitBlueprint("firsts", accepted)
	a.apply(blueprintOfSize("large", 330))
	a.waitBlueprint("larges", overBudget)
	a.apply(blueprintOfSize("second", 130))
	a.waitBlueprint("seconds", accepted)
	a.apply(blueprintOfSize("third", 130))
	a.waitBlueprint("thirds", overBudget)

	// A change that makes a served Blueprint exceed the budget is rejected, too.
	a.apply(blueprintOfSize("second", 300))
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
		if served := p.logged(line{Msg: "Blueprint served", Type: kind + "s"}); len(served) > 0 {
			t.Errorf("%s was served although it exceeds the budget: %+v", kind, served)
		}
	}

	// The older of the rejected Blueprints does not fit into the released memory.
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
