package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

// withCrossNamespaceChild runs as a ServiceAccount. It also has a child in another namespace, which cannot have an
// owner reference.
var withCrossNamespaceChild = strings.Replace(deleting, "spec:\n",
	"spec:\n"+runsAs+"\n  allowedNamespaces: [\"*-far\"]\n", 1) + `
    - id: far
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: far, namespace: "${self.metadata.namespace}-far"}
        data: {text: "${self.spec.text}"}
`

// crashingProcess is a process that a test kills.
type crashingProcess struct {
	cmd    *exec.Cmd
	log    bytes.Buffer
	exited chan struct{} // closed when the process has exited and the log is complete
}

func startCrashing(args ...string) (*crashingProcess, error) {
	m := &crashingProcess{cmd: exec.Command(binary, args...), exited: make(chan struct{})}
	m.cmd.Stderr = &m.log
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = m.cmd.Wait() // the process was killed
		close(m.exited)
	}()
	return m, nil
}

func (m *crashingProcess) kill() {
	_ = m.cmd.Process.Kill() // the process may have exited
	<-m.exited
}

// crashAfterWrites runs one process after another until the test ends or stop is called. Each process is killed after
// its nth write, before it receives the response. The function killed returns the number of kills by the kind of the
// write. The function stop returns the final numbers.
func (a *api) crashAfterWrites(nth int, users *impersonations) (killed, stop func() map[string]int) {
	a.Helper()
	var mu sync.Mutex // guards now; held while a process is started
	var now *crashingProcess
	trap := apiproxy.NewTrap(func() {
		mu.Lock()
		m := now
		mu.Unlock()
		m.kill()
	})
	kubeconfig, _ := a.proxied(trap.Wrap, users.wrap)
	over, done := make(chan struct{}), make(chan struct{})
	var counting sync.Mutex // guards counts
	counts := map[string]int{}
	killed = func() map[string]int {
		counting.Lock()
		defer counting.Unlock()
		return maps.Clone(counts)
	}
	go func() {
		defer close(done)
		// Each process applies the CustomResourceDefinition of Blueprints when it starts. Only one process is killed after
		// that write, because no other write would be reached otherwise.
		for matches := isWrite; ; {
			trap.Set(matches, nth, true)
			mu.Lock()
			m, err := startCrashing(runArgs(kubeconfig, "--allow-platform-identity=false", "--leader-elect=false",
				"--health-probe-bind-address", "0")...)
			if err == nil {
				now = m
			}
			mu.Unlock()
			if err != nil {
				a.Error(err)
				return
			}
			select {
			case <-over:
				m.kill()
				return
			case <-m.exited:
			}
			c := trap.Caught()
			if c == nil {
				a.Errorf("the process exited: %s", m.log.String())
				return
			}
			if !isAnotherWrite(*c) {
				matches = isAnotherWrite
			}
			counting.Lock()
			counts[c.Kind()]++
			counting.Unlock()
		}
	}()
	stop = sync.OnceValue(func() map[string]int {
		close(over)
		<-done
		if a.Failed() && now != nil {
			a.Logf("killed at %v; log of the last process:\n%s", killed(), now.log.String())
		}
		return killed()
	})
	a.Cleanup(func() { stop() })
	return killed, stop
}

func isAnotherWrite(c apiproxy.Call) bool {
	return isWrite(c) && c.Name != "blueprints.platform.example.com"
}

// everyWrite lists the writes of the platform in the lifetime of a Blueprint with an instance that is changed.
var everyWrite = []string{
	"create controllerrevisions", "delete controllerrevisions",
	"patch customresourcedefinitions", "create customresourcedefinitions", "update customresourcedefinitions",
	"delete customresourcedefinitions",
	"patch blueprints", "patch blueprints/status", "patch websites", "patch websites/status", "delete websites",
	"patch configmaps", "patch services", "delete configmaps",
}

// declares reports whether the first version of a CustomResourceDefinition declares the field of spec.
func declares(field string) func(*unstructured.Unstructured) error {
	return func(crd *unstructured.Unstructured) error {
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		version, _ := versions[0].(map[string]any)
		_, found, err := unstructured.NestedMap(version, "schema", "openAPIV3Schema", "properties", "spec", "properties",
			field)
		if err == nil && !found {
			err = fmt.Errorf("the schema has no field spec.%s", field)
		}
		return err
	}
}

// Every process is killed after its first, second or third write, from the creation of the Blueprint to its deletion.
// The final state must be correct. A crash before a write is equivalent to a crash after the previous write, because no
// other state is stored.
func TestCrash_AfterEachWrite(t *testing.T) {
	for most := 1; most <= 3; most++ {
		t.Run(fmt.Sprintf("up to %d writes per process", most), func(t *testing.T) {
			a := newAPI(t)
			far := a.addNamespace(a.namespace + "-far")
			web := a.serviceAccount(a.namespace, "web", rule(writeChildren, "", "configmaps,services"))
			a.consent(a.namespace, "web", "websites."+a.group)
			a.grant(far, a.namespace, "web", rule(writeChildren, "", "configmaps"))
			users := newImpersonations()
			soFar, stop := a.crashAfterWrites(most, users)
			a.apply(withCrossNamespaceChild)
			a.apply(flowers)
			a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True", "all 4 resources"))
			a.wait("v1", "ConfigMap", far+"/far", has("roses", "data", "text"))
			a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"), hasCounts(1, 1, 0))

			a.apply(strings.Replace(withCrossNamespaceChild, "public: {type: boolean}",
				"public: {type: boolean}\n            note: {type: string}", 1))
			a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True", "generation 2 is served"))
			a.wait("apiextensions.k8s.io/v1", "CustomResourceDefinition", "websites."+a.group, declares("note"))

			a.apply(strings.ReplaceAll(flowers, "text: roses", "text: tulips, public: false"))
			a.waitGone("v1", "ConfigMap", "flowers-route")
			a.wait("v1", "ConfigMap", far+"/far", has("tulips", "data", "text"))
			a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True", "3 of 4 resources are ready; route"))

			a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
			a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
			a.waitGone("apiextensions.k8s.io/v1", "CustomResourceDefinition", "websites."+a.group)
			for _, name := range []string{far + "/far", "flowers-page"} {
				a.waitGone("v1", "ConfigMap", name)
			}
			a.waitGone("v1", "Service", "flowers")
			if most == 1 {
				// The last write removes the Blueprint's finalizer. It takes effect before the process is killed.
				eventually(t, func() error {
					if soFar()["patch blueprints"] == 0 {
						return errors.New("no process was killed after it removed the finalizer")
					}
					return nil
				})
			}
			killed := stop()
			t.Logf("writes after which processes were killed: %v", killed)
			checkKills(t, most, killed)
			for _, kind := range []string{"get configmaps", "patch configmaps", "patch services", "delete configmaps"} {
				users.onlyAs(t, kind, web)
			}
		})
	}
}

// checkKills checks after which writes processes with up to most writes were killed.
func checkKills(t *testing.T, most int, killed map[string]int) {
	t.Helper()
	if n := killed["patch blueprints/status"]; n > 15 {
		t.Errorf("%d processes were killed after a write of the Blueprint's status, which must not change at startup", n)
	}
	deaths := 0
	for _, n := range killed {
		deaths += n
	}
	if least := len(everyWrite) / most; deaths < least {
		t.Errorf("%d processes were killed, but %d kinds of writes require at least %d", deaths, len(everyWrite), least)
	}
	for _, kind := range everyWrite {
		if most == 1 && killed[kind] == 0 {
			t.Errorf("no process was killed after: %s", kind)
		}
	}
}
