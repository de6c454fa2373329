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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

// farther has a child in another namespace too, where an owner reference cannot reach.
var farther = strings.Replace(deleting, "spec:\n", "spec:\n  allowedNamespaces: [\"*-far\"]\n", 1) + `
    - id: far
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: far, namespace: "${self.metadata.namespace}-far"}
        data: {text: "${self.spec.text}"}
`

// mortal is a process of the binary.
type mortal struct {
	cmd   *exec.Cmd
	log   bytes.Buffer
	ended chan struct{} // closed when it was reaped, and the log is whole
}

func startMortal(args ...string) (*mortal, error) {
	m := &mortal{cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	m.cmd.Stderr = &m.log
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = m.cmd.Wait() // it was killed
		close(m.ended)
	}()
	return m, nil
}

func (m *mortal) kill() {
	_ = m.cmd.Process.Kill() // it may have ended
	<-m.ended
}

// dying runs one process after another until the test ends or stop is called, each of which is killed when its nth
// write has been carried out. Killed returns how many were so far, by the kind of the write, and stop does so at the end.
func (a *api) dying(nth int) (killed, stop func() map[string]int) {
	a.Helper()
	var mu sync.Mutex // guards now, and is held until it has started
	var now *mortal
	trap := apiproxy.NewTrap(func() {
		mu.Lock()
		m := now
		mu.Unlock()
		m.kill()
	})
	kubeconfig, _ := a.watched(trap.Wrap)
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
		// Each applies the CustomResourceDefinition of Blueprints: only the first may die of it, or none got any further.
		for matches := isWrite; ; matches = isAnotherWrite {
			trap.Set(matches, nth, true)
			mu.Lock()
			m, err := startMortal("run", "--kubeconfig", kubeconfig, "--leader-elect=false", "--health-probe-bind-address", "0")
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
			case <-m.ended:
			}
			c := trap.Caught()
			if c == nil {
				a.Errorf("the process ended: %s", m.log.String())
				return
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

// everyWrite is what the platform writes in a Blueprint's life, in which an instance is changed.
var everyWrite = []string{
	"create controllerrevisions", "delete controllerrevisions",
	"patch customresourcedefinitions", "create customresourcedefinitions", "delete customresourcedefinitions",
	"patch blueprints", "patch blueprints/status", "patch websites", "patch websites/status", "delete websites",
	"patch configmaps", "patch services", "delete configmaps",
}

// The process is killed after each of its writes in turn, when it has not seen the answer, from the Blueprint's
// application to its deletion: none lives longer than its first write, than its second, than its third. The end is right
// all the same. Killed before a write is killed after the one before it, as nothing else is kept.
func TestTheProcessMayDieAtEachWrite(t *testing.T) {
	for most := 1; most <= 3; most++ {
		t.Run(fmt.Sprintf("none writes more than %d times", most), func(t *testing.T) {
			a := newAPI(t)
			far := a.namespace + "-far"
			namespaces := a.kube.CoreV1().Namespaces()
			if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: far}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = namespaces.Delete(a.Context(), far, metav1.DeleteOptions{}) })
			soFar, stop := a.dying(most)
			a.apply(farther)
			a.apply(flowers)
			a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True", "all 4 resources"))
			a.wait("v1", "ConfigMap", far+"/far", has("roses", "data", "text"))
			a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"), counted(1, 1, 0))

			a.apply(strings.ReplaceAll(flowers, "text: roses", "text: tulips, public: false"))
			a.waitGone("v1", "ConfigMap", "flowers-route")
			a.wait("v1", "ConfigMap", far+"/far", has("tulips", "data", "text"))
			a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True", "all 3 resources"))

			a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
			a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
			a.waitGone("apiextensions.k8s.io/v1", "CustomResourceDefinition", "websites."+a.group)
			for _, name := range []string{far + "/far", "flowers-page"} {
				a.waitGone("v1", "ConfigMap", name)
			}
			a.waitGone("v1", "Service", "flowers")
			if most == 1 {
				// The last write removes the Blueprint's finalizer. It has an effect before its process is killed.
				eventually(t, func() error {
					if soFar()["patch blueprints"] == 0 {
						return errors.New("no process was killed after it removed the finalizer")
					}
					return nil
				})
			}
			killed := stop()
			t.Logf("killed after these: %v", killed)
			if n := killed["patch blueprints/status"]; n > 15 {
				t.Errorf("%d died of telling how the Blueprint stands: that a process has just begun is no news", n)
			}
			deaths := 0
			for _, n := range killed {
				deaths += n
			}
			if least := len(everyWrite) / most; deaths < least {
				t.Errorf("only %d were killed: a life of %d writes or more takes %d", deaths, len(everyWrite), least)
			}
			for _, kind := range everyWrite {
				if most == 1 && killed[kind] == 0 {
					t.Errorf("none was killed after a %s", kind)
				}
			}
		})
	}
}
