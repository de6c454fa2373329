package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

// sites is a Blueprint with two children. The second refers to the first, so instances have a finalizer.
const sites = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: sites.GROUP}
spec:
  serviceAccountName: web
  type:
    group: GROUP
    version: v1
    kind: Site
    schema:
      properties:
        spec: {type: object, properties: {text: {type: string}, public: {type: boolean}}}
  resources:
    - id: page
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-page"}
        data: {text: "${self.spec.text}"}
    - id: route
      includeWhen: ["self.spec.?public.orValue(true)"]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-route"}
        data: {page: "${page.metadata.name}"}
`

// events returns the events about an object in the form "reason: note", oldest first.
func (a *api) events(namespace, kind, name string) (texts []string) {
	a.Helper()
	list, err := a.kube.EventsV1().Events(namespace).List(a.Context(), metav1.ListOptions{})
	if err != nil {
		a.Fatal(err)
	}
	slices.SortStableFunc(list.Items, func(x, y eventsv1.Event) int { return x.EventTime.Compare(y.EventTime.Time) })
	for _, e := range list.Items {
		if e.Regarding.Kind == kind && e.Regarding.Name == name {
			texts = append(texts, e.Reason+": "+e.Note)
		}
	}
	return texts
}

// waitEvents waits for one event about the object per prefix. It fails the test unless each event starts with its
// prefix.
func (a *api) waitEvents(namespace, kind, name string, prefixes ...string) {
	a.Helper()
	var got []string
	eventually(a.T, func() error {
		if got = a.events(namespace, kind, name); len(got) < len(prefixes) {
			return fmt.Errorf("%s %s: got events %q, want %q", kind, name, got, prefixes)
		}
		return nil
	})
	for i, text := range got {
		if i >= len(prefixes) || !strings.HasPrefix(text, prefixes[i]) {
			a.Errorf("%s %s: got events %q, want %q", kind, name, got, prefixes)
			return
		}
	}
}

// waitRetries waits until the API server has rejected several requests for the ConfigMaps of an instance.
func waitRetries(t *testing.T, proxy *apiproxy.Proxy) {
	t.Helper()
	refused := func(c apiproxy.Call) bool { return c.Resource == "configmaps" && c.Status == http.StatusForbidden }
	before := count(proxy, refused)
	eventually(t, func() error {
		if n := count(proxy, refused) - before; n < 8 {
			return fmt.Errorf("only %d requests were rejected", n)
		}
		return nil
	})
}

func TestEvents_FromCreationToDeletion(t *testing.T) {
	a := newAPI(t)
	kubeconfig, proxy := a.proxiedAs(a.servingRules())
	args := []string{"--allow-platform-identity=false", "--max-retry-delay", "500ms"}
	p := startServing(t, kubeconfig, args...)
	a.serviceAccount(a.namespace, "web")
	a.consent(a.namespace, "web", "sites."+a.group)
	ofBlueprint, ofInstance := []string{}, []string{}
	expect := func() {
		t.Helper()
		a.waitEvents(metav1.NamespaceDefault, "Blueprint", "sites."+a.group, ofBlueprint...)
		a.waitEvents(a.namespace, "Site", "flowers", ofInstance...)
	}

	a.apply(changed(sites, change{"${self.spec.text}", "${self.spec.txt}"}))
	a.waitBlueprint("sites", is("Accepted", "False"))
	ofBlueprint = append(ofBlueprint, `Rejected: Invalid: spec.resources[0].template.data.text: `)
	expect()
	a.apply(sites)
	a.waitBlueprint("sites", is("Serving", "True"))
	ofBlueprint = append(ofBlueprint, "Accepted: generation 2 is accepted", "Served: generation 2 is served")

	// The instance fails until the ServiceAccount has permissions.
	const site = "{apiVersion: GROUP/v1, kind: Site, metadata: {name: flowers}, spec: {text: roses}}"
	a.apply(site)
	a.wait("GROUP/v1", "Site", "flowers", is("Ready", "False", "Forbidden"))
	waitRetries(t, proxy)
	ofInstance = append(ofInstance, "Failed: Forbidden: ")
	expect()
	a.grant(a.namespace, a.namespace, "web", rule(writeChildren, "", "configmaps"))
	a.wait("GROUP/v1", "Site", "flowers", is("Ready", "True"))
	ofInstance = append(ofInstance, "ChildrenApplied: created ConfigMap flowers-page, ConfigMap flowers-route",
		"Ready: all 2 resources are ready")
	expect()

	a.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: flowers-page}, data: {text: weeds}}") // drift
	a.wait("v1", "ConfigMap", "flowers-page", has("roses", "data", "text"))
	ofInstance = append(ofInstance, "ChildrenApplied: updated ConfigMap flowers-page")
	expect()
	a.apply(changed(site, change{"text: roses", "text: roses, public: false"}))
	a.waitGone("v1", "ConfigMap", "flowers-route")
	a.wait("GROUP/v1", "Site", "flowers", is("Ready", "True", "excluded by includeWhen: route"))
	ofInstance = append(ofInstance, "ChildrenDeleted: deleted ConfigMap flowers-route")
	expect()

	// A new process does not repeat events.
	p.kill()
	p = startServing(t, kubeconfig, args...)
	waitUntilQuiet(t, func() int { return writes(proxy) })
	expect()

	a.apply(changed(site, change{"text: roses", "text: roses, public: true"}))
	a.wait("GROUP/v1", "Site", "flowers", is("Ready", "True", "all 2 resources"))
	ofInstance = append(ofInstance, "ChildrenApplied: created ConfigMap flowers-route")
	a.delete("GROUP/v1", "Site", "flowers")
	a.waitGone("GROUP/v1", "Site", "flowers")
	ofInstance = append(ofInstance, "ChildrenDeleted: deleted ConfigMap flowers-route",
		"ChildrenDeleted: deleted ConfigMap flowers-page")
	expect()
	if got := p.logged(line{Level: "error"}); len(got) > 0 {
		t.Errorf("logged %+v", got)
	}
}

// A new process parks the instance again, but does not record another event.
func TestEvents_ParkedInstanceHasOneEvent(t *testing.T) {
	a := newAPI(t)
	kubeconfig, _ := a.proxiedAs(a.servingRules())
	args := []string{"--allow-platform-identity=false", "--queue-max-retries", "2"}
	a.serviceAccount(a.namespace, "web")
	a.consent(a.namespace, "web", "sites."+a.group)
	for _, isFirst := range []bool{true, false} {
		p := startServing(t, kubeconfig, args...)
		if isFirst {
			a.apply(sites)
			a.apply("{apiVersion: GROUP/v1, kind: Site, metadata: {name: flowers}, spec: {text: roses}}")
		}
		p.waitLog(line{Msg: "Reconcile failed, object parked", Object: a.namespace + "/flowers"})
		a.waitEvents(a.namespace, "Site", "flowers", "Failed: Forbidden: ", "Parked: reconciling failed and is not retried")
		p.stop(syscall.SIGTERM) // waits until all events are written
	}
	a.waitEvents(a.namespace, "Site", "flowers", "Failed: Forbidden: ", "Parked: reconciling failed and is not retried")
}

// Reconciles continue without the permission.
func TestEvents_MissingPermissionIsLoggedOnce(t *testing.T) {
	a := newAPI(t)
	rules := slices.DeleteFunc(a.servingRules(), func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "events")
	})
	kubeconfig, _ := a.proxiedAs(rules)
	p := startServing(t, kubeconfig, "--allow-platform-identity=false")
	a.serviceAccount(a.namespace, "web", rule(writeChildren, "", "configmaps"))
	a.consent(a.namespace, "web", "sites."+a.group)
	a.apply(sites)
	a.apply("{apiVersion: GROUP/v1, kind: Site, metadata: {name: flowers}, spec: {text: roses}}")
	a.wait("GROUP/v1", "Site", "flowers", is("Ready", "True"))
	denied := line{Level: "error", Msg: "Events cannot be written because of a missing permission"}
	p.waitLog(denied)
	p.stop(syscall.SIGTERM)
	p.loggedOnce(denied)
	if got := a.events(a.namespace, "Site", "flowers"); len(got) > 0 {
		t.Errorf("got %q", got)
	}
}
