package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

const blueprintVersion = "platform.example.com/v1alpha1"

// waitBlueprint waits for a Blueprint of the test's group.
func (a *api) waitBlueprint(name string, checks ...func(*unstructured.Unstructured) error) *unstructured.Unstructured {
	a.Helper()
	return a.wait(blueprintVersion, "Blueprint", name+"."+a.group, all(checks...))
}

// proxied starts a proxy that records the requests and applies the wrappers. It returns a kubeconfig for the proxy with
// all permissions.
func (a *api) proxied(wrappers ...transport.WrapperFunc) (kubeconfig string, calls *apiproxy.Proxy) {
	a.Helper()
	return a.proxiedAs([]rbacv1.PolicyRule{everything()}, wrappers...)
}

// proxiedAs is like proxied, but the kubeconfig has only the given permissions.
func (a *api) proxiedAs(
	rules []rbacv1.PolicyRule, wrappers ...transport.WrapperFunc,
) (kubeconfig string, calls *apiproxy.Proxy) {
	a.Helper()
	proxy, err := apiproxy.Start(a.cluster.Config(), wrappers...)
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(proxy.Close)
	direct, err := clientcmd.LoadFromFile(a.account(a.platformName(), rules...))
	if err != nil {
		a.Fatal(err)
	}
	return writeKubeconfig(a.T, &clientcmdapi.Cluster{Server: proxy.URL(), CertificateAuthorityData: proxy.CAData()},
		direct.AuthInfos["it"].Token), proxy
}

// isWrite reports whether a request changes objects other than the Lease and events. It excludes access reviews, which
// are not stored.
func isWrite(c apiproxy.Call) bool {
	return c.IsWrite() && !strings.HasPrefix(c.Resource, "selfsubject") && c.Resource != "leases" && c.Resource != "events"
}

func writes(proxy *apiproxy.Proxy) int { return count(proxy, isWrite) }

func isListOrWatch(c apiproxy.Call) bool { return c.Verb == "list" || c.Verb == "watch" }

func count(proxy *apiproxy.Proxy, matches func(apiproxy.Call) bool) (n int) {
	for _, c := range proxy.Calls() {
		if matches(c) {
			n++
		}
	}
	return n
}

func TestChildren_DriftIsCorrected(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	page, err := a.get("v1", "ConfigMap", "flowers-page")
	if err != nil {
		t.Fatal(err)
	}
	a.delete("v1", "ConfigMap", "flowers-page")
	a.wait("v1", "ConfigMap", "flowers-page", func(now *unstructured.Unstructured) error {
		if now.GetUID() == page.GetUID() {
			return fmt.Errorf("the deleted page still exists")
		}
		return nil
	})
	a.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: flowers-page}, " +
		"data: {text: weeds, more: of another client}}")
	a.wait("v1", "ConfigMap", "flowers-page", all(has("roses", "data", "text"), has("of another client", "data", "more")))
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
}

func TestBlueprint_ChangeIsRolledOut(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	a.apply(strings.ReplaceAll(flowers, "name: flowers", "name: trees"))
	a.wait("GROUP/v1", "Website", "trees", is("Ready", "True"))
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))

	// The template of the Service, the only one of its kind, is removed. The text of the page is changed.
	changed := websites[:strings.Index(websites, "    - id: service")]
	changed = strings.ReplaceAll(changed, "${service.spec.clusterIP}:80", "none")
	changed = strings.ReplaceAll(changed, "${self.spec.text}", "fresh ${self.spec.text}")
	a.apply(changed)
	for _, name := range []string{"flowers", "trees"} {
		a.wait("v1", "ConfigMap", name+"-page", has("fresh roses", "data", "text"))
		a.waitGone("v1", "Service", name)
		a.wait("GROUP/v1", "Website", name, is("Ready", "True", "all 2 resources"))
	}
	// A resource that an instance excludes is deleted.
	a.apply(strings.ReplaceAll(flowers, "text: roses", "text: roses, public: false"))
	a.waitGone("v1", "ConfigMap", "flowers-route")
	a.wait("GROUP/v1", "Website", "flowers",
		is("Ready", "True", "1 of 2 resources is ready; excluded by includeWhen: route"))
}

func TestBlueprint_RejectedGenerationKeepsTheServedOne(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.apply(strings.ReplaceAll(websites, "${self.spec.text}", "${self.spec.txt}"))
	a.waitBlueprint("websites", is("Accepted", "False", "spec.resources[1].template.data.text", "unknown field \"txt\""),
		is("Serving", "True", "generation 1 is served"))
	a.apply(strings.ReplaceAll(flowers, "roses", "tulips"))
	a.wait("v1", "ConfigMap", "flowers-page", has("tulips", "data", "text"))
	a.apply(strings.ReplaceAll(websites, "${self.spec.text}", "fresh ${self.spec.text}"))
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True", "generation 3 is served"))
	a.wait("v1", "ConfigMap", "flowers-page", has("fresh tulips", "data", "text"))
}

func TestBlueprint_ServedRevisionSurvivesARestart(t *testing.T) {
	a := newAPI(t)
	first := startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.apply(strings.ReplaceAll(websites, "${self.spec.text}", "${self.spec.txt}"))
	a.waitBlueprint("websites", is("Accepted", "False"), has(int64(1), "status", "served", "generation"))
	first.kill()
	kubeconfig, proxy := a.proxied()
	startServing(t, kubeconfig)
	a.apply(strings.ReplaceAll(flowers, "roses", "tulips"))
	a.wait("v1", "ConfigMap", "flowers-page", has("tulips", "data", "text"))
	a.waitBlueprint("websites", is("Accepted", "False", "unknown field \"txt\""),
		is("Serving", "True", "generation 1 is served"))
	waitUntilQuiet(t, func() int { return writes(proxy) })
	a.apply(strings.ReplaceAll(websites, "${self.spec.text}", "fresh ${self.spec.text}"))
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True", "generation 3 is served"),
		has(int64(3), "status", "served", "generation"))
	a.wait("v1", "ConfigMap", "flowers-page", has("fresh tulips", "data", "text"))
}

// markets creates a Website for each Market. Websites are instances of another Blueprint.
const markets = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: markets.GROUP}
spec:
  deletionPolicy: Delete
  type:
    group: GROUP
    version: v1
    kind: Market
    schema: {type: object, properties: {spec: {type: object, properties: {text: {type: string}}}}}
  resources:
    - id: site
      readyWhen: ["site.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')"]
      template:
        apiVersion: GROUP/v1
        kind: Website
        metadata: {name: "${self.metadata.name}"}
        spec: {text: "${self.spec.text}"}
`

const market = "{apiVersion: GROUP/v1, kind: Market, metadata: {name: monday}, spec: {text: fish}}"

var deleting = strings.Replace(websites, "spec:\n", "spec:\n  deletionPolicy: Delete\n", 1)

func TestBlueprint_ChainsInAnyOrder(t *testing.T) {
	for name, test := range map[string]struct{ made, deleted []string }{
		"created parent first, deleted parent first": {[]string{"markets", "websites"}, []string{"markets", "websites"}},
		"created parent first, deleted child first":  {[]string{"markets", "websites"}, []string{"websites", "markets"}},
		"created child first, deleted child first":   {[]string{"websites", "markets"}, []string{"websites", "markets"}},
		"created child first, deleted together":      {[]string{"websites", "markets"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			startServing(t, a.cluster.Kubeconfig())
			text := map[string]string{"markets": markets, "websites": deleting}
			for i, b := range test.made {
				a.apply(text[b])
				if i == 0 && b == "markets" {
					a.waitBlueprint(b, is("Accepted", "False",
						"spec.resources[0].template: unknown kind Website in "+a.group+"/v1"))
				}
			}
			a.waitBlueprint("markets", is("Accepted", "True"), is("Serving", "True"))
			a.apply(market)
			a.wait("GROUP/v1", "Market", "monday", is("Ready", "True"))
			a.wait("v1", "ConfigMap", "monday-page", has("fish", "data", "text"))
			if test.deleted == nil {
				a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
				a.delete(blueprintVersion, "Blueprint", "markets."+a.group)
			}
			for _, b := range test.deleted {
				a.delete(blueprintVersion, "Blueprint", b+"."+a.group)
				a.waitGone(blueprintVersion, "Blueprint", b+"."+a.group)
			}
			for _, b := range test.made {
				a.waitGone(blueprintVersion, "Blueprint", b+"."+a.group)
				a.waitGone("apiextensions.k8s.io/v1", "CustomResourceDefinition", b+"."+a.group)
			}
			for _, name := range []string{"monday-page", "monday-route"} {
				a.waitGone("v1", "ConfigMap", name)
			}
			a.waitGone("v1", "Service", "monday")
		})
	}
}

func TestDeletionPolicies(t *testing.T) {
	t.Run("Retain keeps everything for a Blueprint of the same name", func(t *testing.T) {
		a := newAPI(t)
		startServing(t, a.cluster.Kubeconfig())
		a.apply(websites)
		a.apply(flowers)
		before := a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
		a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
		a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
		if now, err := a.get("GROUP/v1", "Website", "flowers"); err != nil ||
			now.GetUID() != before.GetUID() || len(now.GetFinalizers()) > 0 {
			t.Errorf("got instance %v, %v", now, err)
		}
		if _, err := a.get("v1", "ConfigMap", "flowers-page"); err != nil {
			t.Error(err)
		}
		// The platform does not add finalizers to new instances.
		a.apply(strings.ReplaceAll(flowers, "name: flowers", "name: trees"))
		a.delete("GROUP/v1", "Website", "trees")
		a.waitGone("GROUP/v1", "Website", "trees")

		other := strings.Replace(websites, "name: websites.GROUP", "name: others.GROUP", 1)
		a.apply(other)
		a.waitBlueprint("others", is("Accepted", "False", "TypeNotOwned", "is reserved for Blueprint"))
		a.apply(strings.ReplaceAll(websites, "${self.spec.text}", "again ${self.spec.text}"))
		a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True"))
		a.wait("v1", "ConfigMap", "flowers-page", has("again roses", "data", "text"))
	})
	t.Run("Delete deletes the instances, their children and the type", func(t *testing.T) {
		a := newAPI(t)
		startServing(t, a.cluster.Kubeconfig())
		a.apply(deleting)
		a.apply(flowers)
		a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
		a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
		a.waitGone("apiextensions.k8s.io/v1", "CustomResourceDefinition", "websites."+a.group)
		if _, err := a.get("v1", "ConfigMap", "flowers-page"); !apierrors.IsNotFound(err) {
			t.Errorf("the type was deleted before a child: %v", err)
		}
		a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	})
}

func TestSteadyState_SendsNoWrites(t *testing.T) {
	a := newAPI(t)
	kubeconfig, proxy := a.proxied()
	first := startServing(t, kubeconfig, "--resync-period", "2s")
	a.apply(websites)
	for i := range 5 {
		a.apply(strings.ReplaceAll(flowers, "name: flowers", fmt.Sprintf("name: flowers-%d", i)))
	}
	a.waitBlueprint("websites", hasCounts(5, 5, 0))
	waitUntilQuiet(t, func() int { return writes(proxy) })
	calls := len(proxy.Calls())
	waitUntilQuiet(t, func() int { return writes(proxy) }) // longer than a resync period
	for _, c := range proxy.Calls()[calls:] {
		if isWrite(c) {
			t.Errorf("a resync wrote %+v", c)
		}
	}
	first.kill()
	before := len(proxy.Calls())
	second := startServing(t, kubeconfig, "--resync-period", "2s")
	second.waitLog(line{Msg: "Started leading"})
	waitUntilQuiet(t, func() int { return writes(proxy) })
	for _, c := range proxy.Calls()[before:] {
		if isWrite(c) && c.Name != "blueprints.platform.example.com" {
			t.Errorf("a new process sent the write %+v", c)
		}
	}
}

// The test removes the finalizers of the instances one by one. Each removal causes an event.
func TestDeletion_ListsRemainingInstancesAtALimitedRate(t *testing.T) {
	a := newAPI(t)
	kubeconfig, proxy := a.proxied()
	startServing(t, kubeconfig)
	head, _, _ := strings.Cut(deleting, "resources:")
	a.apply(head + "resources: []")
	a.waitBlueprint("websites", is("Serving", "True"))
	const held = 40
	name := func(i int) string { return fmt.Sprintf("held-%d", i) }
	for i := range held {
		a.apply(fmt.Sprintf("{apiVersion: GROUP/v1, kind: Website, metadata: {name: %s, finalizers: [example.com/hold]}, "+
			"spec: {}}", name(i)))
	}
	a.waitBlueprint("websites", hasCounts(held, held, 0))
	lists := func() (n int) {
		for _, c := range proxy.Calls() {
			// Requests with other status codes check whether the type is still served.
			if c.Verb == "list" && c.Group == a.group && c.Resource == "websites" && c.Status == http.StatusOK {
				n++
			}
		}
		return n
	}
	listed, written, began := lists(), writes(proxy), time.Now()
	a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
	a.waitBlueprint("websites", is("Serving", "False", "Deleting", "waiting for 40 instances"))
	for i := range held {
		a.apply(fmt.Sprintf("{apiVersion: GROUP/v1, kind: Website, metadata: {name: %s, finalizers: []}, spec: {}}", name(i)))
		a.waitGone("GROUP/v1", "Website", name(i))
	}
	a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
	took := time.Since(began)
	t.Logf("the deletion took %v with %d lists and %d writes", took, lists()-listed, writes(proxy)-written)
	if n, most := lists()-listed, int(took/(250*time.Millisecond))+2; n > most {
		t.Errorf("the instances were listed %[2]d times in %[1]v, want at most %[3]d", took, n, most)
	}
	// The writes delete the instances and the type, remove the Blueprint's finalizer, and update the statuses. The status
	// of an instance is updated twice if Kubernetes removes its own finalizer late.
	if n, most := writes(proxy)-written, 3*held+2+int(took/time.Second)+2; n > most {
		t.Errorf("got %[2]d writes in %[1]v, want at most %[3]d", took, n, most)
	}
}
