//go:build long

package main

import (
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// edit changes the instances, and waits until the change has reached all children.
func (u *upgraded) edit(text string) {
	u.Helper()
	u.apply(changed(flowers, change{"roses", text}))
	u.apply(changed(depot, change{"text: a", "text: " + text}))
	u.wait("v1", "ConfigMap", "flowers-page", has(text, "data", "text"))
	u.wait("v1", "ConfigMap", u.far+"/d-far", has(text, "data", "text"))
	u.waitReady()
}

// createAndDelete creates instances and deletes them with their children.
func (u *upgraded) createAndDelete() {
	u.Helper()
	u.apply(changed(flowers, change{"name: flowers", "name: trees"}))
	u.apply(changed(depot, change{"name: d", "name: e"}))
	u.wait("GROUP/v1", "Website", "trees", is("Ready", "True"))
	u.wait("GROUP/v1", "Depot", "e", is("Ready", "True"))
	u.delete("GROUP/v1", "Website", "trees")
	u.delete("GROUP/v1", "Depot", "e")
	u.waitGone("GROUP/v1", "Website", "trees")
	u.waitGone("GROUP/v1", "Depot", "e")
	u.waitGone("v1", "ConfigMap", u.far+"/e-far")
	u.waitGone("v1", "ConfigMap", "trees-page")
}

// deleteInstance deletes an instance that existed during the replacement.
func (u *upgraded) deleteInstance(name string) {
	u.Helper()
	u.delete("GROUP/v1", "Depot", name)
	u.waitGone("GROUP/v1", "Depot", name)
	u.waitGone("v1", "ConfigMap", u.far+"/"+name+"-far")
	u.waitGone("v1", "Secret", name+"-near")
}

// A rolling update replaces the previous version, and is then rolled back. The instances remain Ready, no child is
// deleted or created again, and no finalizer blocks a deletion.
func TestUpgrade_FromThePreviousVersionAndBack(t *testing.T) {
	program := buildPrevious(t) // before newAPI, and thus while no parallel test is running
	a := newAPI(t)
	u := &upgraded{api: a, far: a.addNamespace(a.namespace + "-far")}
	startOld := func() *process {
		p := startCommand(t, exec.Command(program, replicaArgs(t, a.cluster.Kubeconfig())...))
		p.waitLog(line{Msg: "Started leading"})
		return p
	}
	kubeconfig, proxy := a.proxied()
	startNew := func() *process {
		return startReplica(t, kubeconfig)
	}
	old := startOld()
	a.apply(websites)
	a.apply(strings.ReplaceAll(depots, "FAR", u.far))
	a.apply(flowers)
	a.apply(depot)
	a.apply(changed(depot, change{"name: d", "name: f"})) // deleted after the upgrade
	a.apply(changed(depot, change{"name: d", "name: g"})) // deleted after the rollback
	u.waitReady()

	// The new replicas do not write while the old one leads.
	replicas := []*process{startNew(), startNew()}
	for _, p := range replicas {
		p.waitReady()
	}
	u.edit("tulips")
	if n := writes(proxy); n > 0 {
		t.Errorf("the standby replicas sent %d writes", n)
	}
	before := u.identities()
	old.kill()
	eventually(t, func() error {
		for _, p := range replicas {
			if len(p.logged(line{Msg: "Started leading"})) > 0 {
				return nil
			}
		}
		return fmt.Errorf("no new replica leads")
	})
	for _, name := range []string{"websites", "depots"} {
		a.waitBlueprint(name, is("Accepted", "True"), is("Serving", "True"), is("Progressing", "True", "RolloutComplete"))
	}
	u.waitReady()
	waitUntilQuiet(t, func() int { return writes(proxy) })
	u.checkKept(before, "upgrade")
	written := map[string]int{}
	for _, c := range proxy.Calls() {
		isChild := slices.Contains([]string{"configmaps", "secrets", "services"}, c.Resource)
		if isChild && isWrite(c) && c.Status < http.StatusBadRequest {
			written[c.Resource+"/"+c.Name]++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(written)) {
		if written[name] > 1 {
			t.Errorf("%s was written %d times during the upgrade, want once", name, written[name])
		}
	}
	u.edit("lilies")
	u.createAndDelete()
	u.deleteInstance("f")

	for _, p := range replicas {
		p.stop(syscall.SIGTERM)
	}
	before = u.identities()
	old = startOld()
	u.edit("asters")
	u.checkKept(before, "rollback")
	u.createAndDelete()
	u.deleteInstance("g")
	old.stop(syscall.SIGTERM)

	// After another upgrade, everything can be deleted.
	startNew()
	a.wait(typeVersion, typeKind, manifestName, hasManifestRevision)
	u.edit("poppies")
	a.delete(blueprintVersion, "Blueprint", "depots."+a.group)
	a.waitGone(blueprintVersion, "Blueprint", "depots."+a.group)
	a.waitGone(typeVersion, typeKind, "depots."+a.group)
	a.waitGone("v1", "ConfigMap", u.far+"/d-far")
}
