package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

// gardens is a Blueprint that runs as a ServiceAccount. It has status fields, two references to existing ConfigMaps, a
// collection that depends on both, and a child in another namespace, which cannot have an owner reference.
var gardens = changed(deleting,
	change{"spec:\n", "spec:\n" + runsAs + "\n  allowedNamespaces: [\"*-far\"]\n"},
	change{"    schema:\n", `    status:
      address: ${service.spec.clusterIP}
      seed: ${seeds.data.seed}
      plants: ${plants.map(p, p.metadata.name).join(' ')}
    conditions: [{type: Watered, status: seeds.data.rain == 'yes'}]
    schema:
`}) + `
    - id: far
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: far, namespace: "${self.metadata.namespace}-far"}
        data: {text: "${self.spec.text}"}
    - id: seeds
      externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {name: seeds}}
    - id: gardeners
      externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {selector: {matchLabels: {team: red}}}}
    - id: plants
      forEach: [{plant: "${[self.spec.text, seeds.data.seed] + gardeners.map(g, g.metadata.name)}"}]
      template:
        apiVersion: v1
        kind: LimitRange
        metadata: {name: "${self.metadata.name}-${plant}"}
        spec: {limits: [{type: Pod, max: {cpu: "1"}}]}
`

// seeds returns the ConfigMap that gardens refer to by name.
func seeds(seed, rain string) string {
	return "{apiVersion: v1, kind: ConfigMap, metadata: {name: seeds}, data: {seed: " + seed + ", rain: '" + rain + "'}}"
}

// gardener returns a ConfigMap that gardens select if its team is red.
func gardener(name, team string) string {
	return "{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + ", labels: {team: " + team + "}}}"
}

// crashes runs one process after another. A trap kills each process after one of its writes.
type crashes struct {
	*api
	args []string
	trap *apiproxy.Trap
	nth  int
	over chan struct{} // closed to end the crashes
	done chan struct{} // closed when they have ended

	mu  sync.Mutex // guards now; held while a process is started
	now *process

	counting sync.Mutex // guards counts
	counts   map[string]int
}

// crashAfterWrites runs one process after another until the test ends or stop is called. Each process is killed after
// its nth write, before it receives the response. The API server calls the webhook of the current process.
func (a *api) crashAfterWrites(nth int, users *impersonations) *crashes {
	a.Helper()
	c := &crashes{api: a, nth: nth, over: make(chan struct{}), done: make(chan struct{}), counts: map[string]int{}}
	c.trap = apiproxy.NewTrap(func() { endNow(c.current()) })
	kubeconfig, _ := a.proxied(c.trap.Wrap, users.wrap)
	c.args = runArgs(kubeconfig, append(a.webhookArgs(), "--allow-platform-identity=false", "--leader-elect=false",
		"--health-probe-bind-address", "0", "--namespace", platformNamespace)...)
	a.installWebhook(c.webhookAddresses)
	a.Cleanup(c.end)
	go c.run()
	return c
}

// run starts the processes.
func (c *crashes) run() {
	defer close(c.done)
	// Each process applies the Blueprint CustomResourceDefinition at startup. Only one process is killed after that
	// write, so that the others reach later writes.
	for matches := isWrite; ; {
		c.trap.Set(matches, c.nth, true)
		p := c.start()
		if p == nil {
			return
		}
		select {
		case <-c.over:
			endNow(p)
			c.trap.Set(matches, 0, true)
			c.start()
			return
		case <-p.exited:
		}
		caught := c.trap.Caught()
		if caught == nil && p.cmd.ProcessState.ExitCode() >= 0 {
			c.Errorf("the process exited: %s", p.output())
			return
		}
		if caught == nil {
			continue // killed by restart
		}
		if !isAnotherWrite(*caught) {
			matches = isAnotherWrite
		}
		c.counting.Lock()
		c.counts[caught.Kind()]++
		c.counting.Unlock()
	}
}

// start starts the next process. It returns nil if the process cannot be started.
func (c *crashes) start() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := begin(c.T, exec.Command(binary, c.args...))
	if err != nil {
		c.Error(err)
		return nil
	}
	c.now = p
	return p
}

func (c *crashes) current() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// restart kills the current process, if there is one.
func (c *crashes) restart() {
	if p := c.current(); p != nil {
		endNow(p)
	}
}

// endNow kills a process, which may have exited.
func endNow(p *process) {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// webhookAddresses returns the address of the webhook of the current process.
func (c *crashes) webhookAddresses() (addresses []string) {
	if p := c.current(); p != nil {
		for _, l := range p.logged(line{Msg: "Listening", Endpoint: flagWebhook}) {
			addresses = append(addresses, l.Address)
		}
	}
	return addresses
}

// killed returns the number of processes that have been killed after writes of each kind.
func (c *crashes) killed() map[string]int {
	c.counting.Lock()
	defer c.counting.Unlock()
	return maps.Clone(c.counts)
}

// total returns the number of processes that have been killed.
func (c *crashes) total() (n int) {
	for _, killed := range c.killed() {
		n += killed
	}
	return n
}

// stop ends the crashes. The next process runs until the test ends.
func (c *crashes) stop() {
	close(c.over)
	<-c.done
}

// end kills the last process.
func (c *crashes) end() {
	select {
	case <-c.over:
	default:
		c.stop()
	}
	if p := c.current(); p != nil {
		endNow(p)
		if c.Failed() {
			c.Logf("killed at %v; log of the last process:\n%s", c.killed(), p.output())
		}
	}
}

func isAnotherWrite(c apiproxy.Call) bool {
	return isWrite(c) && c.Name != "blueprints.platform.example.com"
}

// everyWrite lists the platform's writes for a Blueprint with an instance, from creation through changes to
// deletion. The LimitRanges belong to the collection. The Secret and the ValidatingWebhookConfiguration belong to the
// webhook.
var everyWrite = []string{
	"create controllerrevisions", "delete controllerrevisions",
	"patch customresourcedefinitions", "create customresourcedefinitions", "update customresourcedefinitions",
	"delete customresourcedefinitions",
	"patch blueprints", "patch blueprints/status", "patch websites", "patch websites/status", "delete websites",
	"patch configmaps", "patch services", "delete configmaps", "patch limitranges", "delete limitranges",
	"create secrets", "update secrets", "patch validatingwebhookconfigurations",
}

// replaceCertificate removes the webhook's certificate, and waits until another one has been created and
// published. If every process is killed after one write, it also waits until a process has been killed after a write of
// the given kind.
func (c *crashes) replaceCertificate(kind string, remove func() error) {
	c.Helper()
	before := c.killed()[kind]
	eventually(c.T, func() error {
		if err := remove(); err != nil {
			return err
		}
		c.restart()
		eventually(c.T, c.hasCertificate)
		if c.nth == 1 && c.killed()[kind] == before {
			return fmt.Errorf("no process was killed after %s", kind)
		}
		return nil
	})
}

// hasCertificate returns an error unless the API server trusts the authority in the Secret.
func (c *crashes) hasCertificate() error {
	secret, err1 := c.kube.CoreV1().Secrets(platformNamespace).Get(c.Context(), c.namespace, metav1.GetOptions{})
	config, err2 := c.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(c.Context(), c.namespace,
		metav1.GetOptions{})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if ca := secret.Data["ca.crt"]; len(ca) == 0 || !bytes.Equal(ca, config.Webhooks[0].ClientConfig.CABundle) {
		return errors.New("the certificate has not been created and published")
	}
	return nil
}

func (c *crashes) deleteCertificate() error {
	return c.kube.CoreV1().Secrets(platformNamespace).Delete(c.Context(), c.namespace, metav1.DeleteOptions{})
}

func (c *crashes) emptyCertificate() error {
	_, err := c.kube.CoreV1().Secrets(platformNamespace).Patch(c.Context(), c.namespace, types.MergePatchType,
		[]byte(`{"data":null}`), metav1.PatchOptions{})
	return err
}

// declares checks that the first version of a CustomResourceDefinition declares a field of spec.
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

var crashAfterWrites = flag.Int("crash-after-writes", 1,
	"the largest number of writes per process in TestCrash_AfterEachWrite")

// Each process is killed after its first (or second, or third) write, from the creation of the Blueprint to its
// deletion. The final state must be correct, and the webhook must reject an invalid Blueprint. A crash before a write
// is equivalent to a crash after the previous one, because the platform has no other state.
func TestCrash_AfterEachWrite(t *testing.T) {
	for most := 1; most <= *crashAfterWrites; most++ {
		t.Run(fmt.Sprintf("up to %d writes per process", most), func(t *testing.T) {
			a := newAPI(t)
			far := a.addNamespace(a.namespace + "-far")
			web := a.serviceAccount(a.namespace, "web", rule(writeChildren, "", "configmaps,services,limitranges"),
				rule("list", "", "configmaps"))
			a.consent(a.namespace, "web", "websites."+a.group)
			a.grant(far, a.namespace, "web", rule(writeChildren, "", "configmaps"))
			users := newImpersonations()
			a.apply(gardener("ann", "red"))
			existing := []*unstructured.Unstructured{a.apply(seeds("moss", "no")), a.apply(gardener("bob", "blue"))}
			crashes := a.crashAfterWrites(most, users)
			// waitKill applies the change and waits until a process was killed after a write of the given kind.
			waitKill := func(kind string, change func()) {
				t.Helper()
				// A process is killed only after its first write.
				waitUntilQuiet(t, crashes.total)
				before := crashes.killed()[kind]
				change()
				eventually(t, func() error {
					if most == 1 && crashes.killed()[kind] == before {
						return fmt.Errorf("no process was killed after %s", kind)
					}
					return nil
				})
			}
			crashes.replaceCertificate("create secrets", crashes.deleteCertificate)
			a.apply(gardens)
			a.apply(flowers)
			a.waitGarden("moss", "flowers-roses flowers-moss flowers-ann", "all 7 resources are ready, with 7 objects")
			a.wait("v1", "ConfigMap", far+"/far", has("roses", "data", "text"))
			a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"), hasCounts(1, 1, 0))

			a.apply(changed(gardens, change{"public: {type: boolean}",
				"public: {type: boolean}\n            note: {type: string}"}))
			a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True", "generation 2 is served"))
			a.wait("apiextensions.k8s.io/v1", "CustomResourceDefinition", "websites."+a.group, declares("note"))

			crashes.replaceCertificate("update secrets", crashes.emptyCertificate)
			// Only the status depends on the value of rain.
			waitKill("patch websites/status", func() {
				existing[0] = a.apply(seeds("moss", "yes"))
				a.wait("GROUP/v1", "Website", "flowers", is("Watered", "True"))
			})
			waitKill("delete limitranges", func() {
				existing[0] = a.apply(seeds("fern", "yes"))
				a.waitGone("v1", "LimitRange", "flowers-moss")
			})
			existing = append(existing, a.apply(gardener("ann", "blue")))
			a.waitGone("v1", "LimitRange", "flowers-ann")
			a.waitGarden("fern", "flowers-roses flowers-fern", "all 7 resources are ready, with 6 objects")

			a.apply(strings.ReplaceAll(flowers, "text: roses", "text: tulips, public: false"))
			a.waitGone("v1", "ConfigMap", "flowers-route")
			a.wait("v1", "ConfigMap", far+"/far", has("tulips", "data", "text"))
			a.waitGone("v1", "LimitRange", "flowers-roses")
			a.waitGarden("fern", "flowers-tulips flowers-fern", "6 of 7 resources are ready, with 5 objects",
				"excluded by includeWhen: route")

			// The last write removes the Blueprint's finalizer. It takes effect before the process is killed.
			waitKill("patch blueprints", func() {
				a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
				a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
			})
			a.waitGone("apiextensions.k8s.io/v1", "CustomResourceDefinition", "websites."+a.group)
			for _, name := range []string{far + "/far", "flowers-page"} {
				a.waitGone("v1", "ConfigMap", name)
			}
			for _, name := range []string{"flowers-tulips", "flowers-fern"} {
				a.waitGone("v1", "LimitRange", name)
			}
			a.waitGone("v1", "Service", "flowers")
			crashes.stop()
			eventually(t, func() error {
				return a.refusal(changed(gardens, change{"${self.spec.text}", "${self.spec.txt}"}), "unknown field \"txt\"")
			})
			killed := crashes.killed()
			t.Logf("kills by kind of write: %v", killed)
			checkKills(t, most, killed)
			for _, kind := range []string{"get configmaps", "patch configmaps", "patch services", "delete configmaps",
				"patch limitranges", "delete limitranges"} {
				users.onlyAs(t, kind, web)
			}
			for _, object := range existing {
				a.wait("v1", "ConfigMap", object.GetName(), hasVersion(object.GetResourceVersion()))
			}
		})
	}
}

// waitGarden waits until the instance flowers is ready and has the status fields.
func (a *api) waitGarden(seed, plants string, ready ...string) {
	a.Helper()
	a.wait("GROUP/v1", "Website", "flowers", all(is("Ready", "True", ready...), has(seed, "status", "seed"),
		has(plants, "status", "plants")))
	service, err := a.get("v1", "Service", "flowers")
	if err != nil {
		a.Fatal(err)
	}
	address, _, _ := unstructured.NestedString(service.Object, "spec", "clusterIP")
	a.wait("GROUP/v1", "Website", "flowers", has(address, "status", "address"))
}

// hasVersion checks that an object has not changed since the given resourceVersion.
func hasVersion(version string) func(*unstructured.Unstructured) error {
	return func(obj *unstructured.Unstructured) error {
		if now := obj.GetResourceVersion(); now != version {
			return fmt.Errorf("the object was written: got resourceVersion %s, want %s", now, version)
		}
		return nil
	}
}

// checkKills checks the kinds of writes after which processes were killed. most is the number of writes per process.
func checkKills(t *testing.T, most int, killed map[string]int) {
	t.Helper()
	if n := killed["patch blueprints/status"]; n > 15 {
		t.Errorf("%d processes were killed after writing the Blueprint's status, which must not change at startup", n)
	}
	deaths := 0
	for _, n := range killed {
		deaths += n
	}
	if least := len(everyWrite) / most; deaths < least {
		t.Errorf("%d processes were killed, but %d kinds of writes need at least %d", deaths, len(everyWrite), least)
	}
	for _, kind := range everyWrite {
		if most == 1 && killed[kind] == 0 {
			t.Errorf("no process was killed after: %s", kind)
		}
	}
}
