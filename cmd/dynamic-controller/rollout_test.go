package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// fleet creates instances, waits until they are ready, and returns their names.
func (a *api) fleet(n int) (names []string) {
	a.Helper()
	for i := range n {
		name := fmt.Sprintf("flowers-%d", i)
		a.apply(changed(flowers, change{"name: flowers", "name: " + name}))
		names = append(names, name)
	}
	for _, name := range names {
		a.wait("GROUP/v1", "Website", name, is("Ready", "True"))
	}
	return names
}

// servedName returns the name of the served revision of the Blueprint websites.
func (a *api) servedName(generation int) string {
	a.Helper()
	b := a.waitBlueprint("websites", has(int64(generation), "status", "served", "generation"))
	name, _, _ := unstructured.NestedString(b.Object, "status", "served", "revision")
	return name
}

// moved returns the instances that have the revision.
func (a *api) moved(names []string, revision string) (moved []string) {
	a.Helper()
	for _, name := range names {
		object, err := a.get("GROUP/v1", "Website", name)
		if err != nil {
			a.Fatal(err)
		}
		if got, _, _ := unstructured.NestedString(object.Object, "status", "revision"); got == revision {
			moved = append(moved, name)
		}
	}
	return moved
}

func page(name, text string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s-page}, data: {%s}}", name, text)
}

func TestRollout_StopsAtAFaultyRevision(t *testing.T) {
	a := newAPI(t)
	first := startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	names := a.fleet(12)
	before := a.servedName(1)
	a.waitBlueprint("websites", is("Progressing", "True", "RolloutComplete"))

	// The API server rejects the key.
	a.apply(changed(websites, change{"data: {text: ", "data: {not a key: "}))
	faulty := a.servedName(2)
	stopped := is("Progressing", "False", "RolloutStopped", "1 of 12 instances are updated", "(Rejected)")
	a.waitBlueprint("websites", stopped)
	moved := a.moved(names, faulty)
	if len(moved) != 1 {
		t.Fatalf("got instances %q with the faulty revision", moved)
	}
	a.wait("GROUP/v1", "Website", moved[0], all(is("Ready", "False", "Rejected"), is("Regressed", "True")))
	a.waitBlueprint("websites", is("Progressing", "False", a.namespace+"/"+moved[0]))
	var others []string
	for _, name := range names {
		if name != moved[0] {
			others = append(others, name)
		}
	}
	driftIsCorrected := func() {
		t.Helper()
		a.apply(page(others[0], "text: weeds"))
		a.wait("v1", "ConfigMap", others[0]+"-page", has("roses", "data", "text"))
	}
	driftIsCorrected()
	a.apply(changed(flowers, change{"name: flowers", "name: " + others[0]}, change{"roses", "tulips"}))
	a.wait("v1", "ConfigMap", others[0]+"-page", has("tulips", "data", "text"))
	a.apply(changed(flowers, change{"name: flowers", "name: " + others[0]}))
	a.wait("v1", "ConfigMap", others[0]+"-page", has("roses", "data", "text"))
	// Deletions do not wait for the rollout.
	a.delete("GROUP/v1", "Website", others[1])
	a.waitGone("GROUP/v1", "Website", others[1])
	others = append(others[:1], others[2:]...)
	stopped = is("Progressing", "False", "RolloutStopped", "1 of 11 instances are updated", "(Rejected)")
	a.waitBlueprint("websites", stopped)

	first.kill()
	kubeconfig, proxy := a.proxied()
	startServing(t, kubeconfig)
	driftIsCorrected()
	waitUntilQuiet(t, func() int { return writes(proxy) })
	a.waitBlueprint("websites", stopped)
	if now := a.moved(others, before); len(now) != len(others) {
		t.Errorf("got instances %q with the old revision after the restart, want %q", now, others)
	}
	for _, name := range others {
		a.wait("GROUP/v1", "Website", name, is("Ready", "True"))
	}

	a.apply(changed(websites, change{"data: {text: ", "data: {fixed: "}))
	fixed := a.servedName(3)
	a.waitBlueprint("websites", is("Progressing", "True", "RolloutComplete"))
	if now := a.moved(append(others, moved...), fixed); len(now) != 11 {
		t.Errorf("got only instances %q with the fixed revision", now)
	}
	for _, name := range append(others, moved...) {
		a.wait("v1", "ConfigMap", name+"-page", has("roses", "data", "fixed"))
		a.wait("GROUP/v1", "Website", name, all(is("Ready", "True"), isAbsent("Regressed")))
	}
}

// isAbsent checks that a condition is not True.
func isAbsent(condition string) func(*unstructured.Unstructured) error {
	return func(object *unstructured.Unstructured) error {
		if is(condition, "True")(object) == nil {
			return fmt.Errorf("condition %s is True", condition)
		}
		return nil
	}
}

func TestRollout_ContinuesAfterTheLeaderIsKilled(t *testing.T) {
	a := newAPI(t)
	first := startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	names := a.fleet(12)
	// In the new revision, a page is ready once the test has confirmed it.
	a.apply(strings.Replace(websites, "    - id: page\n",
		"    - id: page\n      readyWhen: [\"page.data.?confirmed.orValue('') == 'yes'\"]\n", 1))
	next := a.servedName(2)
	waiting := is("Progressing", "True", "RollingOut", "1 of 12 instances are updated", "not ready since the update")
	a.waitBlueprint("websites", waiting)
	moved := a.moved(names, next)
	confirm := func(name string) { a.apply(page(name, "confirmed: 'yes'")) }

	first.kill()
	kubeconfig, proxy := a.proxied()
	startServing(t, kubeconfig)
	waitUntilQuiet(t, func() int { return writes(proxy) })
	a.waitBlueprint("websites", waiting)
	if now := a.moved(names, next); len(moved) != 1 || len(now) != 1 || now[0] != moved[0] {
		t.Fatalf("got instances %q with the new revision, and %q after the restart", moved, now)
	}
	confirmed := map[string]bool{}
	eventually(t, func() error {
		for _, name := range a.moved(names, next) {
			if !confirmed[name] {
				confirmed[name] = true
				confirm(name)
			}
		}
		if len(confirmed) < len(names) {
			return errors.New("not all instances have the new revision")
		}
		return nil
	})
	a.waitBlueprint("websites", is("Progressing", "True", "RolloutComplete"), hasCounts(12, 12, 0))
}
