package main

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/test/apiproxy"
)

// stalls creates a page for each Stall from existing ConfigMaps. If the mode in one of them is on, it creates another
// child.
const stalls = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: stalls.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Stall
    schema:
      properties:
        spec:
          type: object
          properties: {settings: {type: string, default: shared}, team: {type: string, default: red}}
  resources:
    - id: settings
      externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.spec.settings}"}}
    - id: members
      externalRef:
        apiVersion: v1
        kind: ConfigMap
        metadata: {selector: {matchLabels: {team: "${self.spec.team}"}}}
    - id: page
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-page"}
        data: {text: "${settings.data.text}", members: "${members.map(m, m.metadata.name).join(',')}"}
    - id: extra
      includeWhen: ["settings.data.?mode.orValue('off') == 'on'"]
      template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}-extra"}}
`

const stall = "{apiVersion: GROUP/v1, kind: Stall, metadata: {name: s}, spec: {}}"

// share applies the ConfigMap that stalls refer to by name.
func (a *api) share(text, mode string) *unstructured.Unstructured {
	a.Helper()
	return a.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: shared}, data: {text: " + text +
		", mode: '" + mode + "'}}")
}

func (a *api) member(name, team string) {
	a.Helper()
	a.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + ", labels: {team: " + team + "}}}")
}

func TestReference_ChangesUpdateChildren(t *testing.T) {
	a := newAPI(t)
	_, users := a.platform()
	web := a.serviceAccount(a.namespace, "web", rule(writeChildren+",list", "", "configmaps"))
	a.consent(a.namespace, "web", "stalls."+a.group)
	a.apply(strings.Replace(stalls, "spec:\n", "spec:\n"+runsAs+"\n", 1))
	a.waitBlueprint("stalls", is("Accepted", "True"), is("Serving", "True"))
	a.apply(stall)
	a.wait("GROUP/v1", "Stall", "s", is("Ready", "False", "Waiting",
		"settings: ConfigMap "+a.namespace+"/shared does not exist; page: waiting for settings; extra: waiting for settings"))
	shared := a.share("roses", "off")
	a.wait("v1", "ConfigMap", "s-page", all(has("roses", "data", "text"), has("", "data", "members")))
	a.wait("GROUP/v1", "Stall", "s", is("Ready", "True", "3 of 4 resources are ready; excluded by includeWhen: extra"))

	members := func(want string) {
		t.Helper()
		a.wait("v1", "ConfigMap", "s-page", has(want, "data", "members"))
	}
	a.member("b", "red")
	a.member("a", "red")
	a.member("c", "blue")
	members("a,b")
	a.member("a", "blue")
	members("b")
	a.delete("v1", "ConfigMap", "b")
	members("")
	a.apply(strings.Replace(stall, "spec: {}", "spec: {team: blue}", 1))
	members("a,c")

	a.share("tulips", "on")
	a.wait("v1", "ConfigMap", "s-page", has("tulips", "data", "text"))
	extra := a.wait("v1", "ConfigMap", "s-extra", all())
	// The child is kept while its includeWhen cannot be evaluated.
	a.delete("v1", "ConfigMap", "shared")
	a.wait("GROUP/v1", "Stall", "s", is("Ready", "False", "Waiting", "extra: waiting for settings"))
	a.wait("v1", "ConfigMap", "s-extra", uidIs(string(extra.GetUID())))
	a.wait("v1", "ConfigMap", "s-page", has("tulips", "data", "text"))
	a.share("tulips", "off")
	a.waitGone("v1", "ConfigMap", "s-extra")
	// The child is updated when a referenced object changes repeatedly.
	for _, last := range []string{"on", "off"} {
		for range 5 {
			a.share("tulips", "off")
			a.share("tulips", "on")
		}
		a.share("tulips", last)
		if last == "on" {
			a.wait("v1", "ConfigMap", "s-extra", all())
		} else {
			a.waitGone("v1", "ConfigMap", "s-extra")
		}
		a.wait("GROUP/v1", "Stall", "s", is("Ready", "True"))
	}

	users.onlyAs(t, "get configmaps", web)
	if !users.includes("list configmaps", web) {
		t.Error("the ConfigMaps were not listed as the ServiceAccount")
	}
	users.onlyAs(t, "watch configmaps", "")
	a.delete("GROUP/v1", "Stall", "s")
	a.waitGone("v1", "ConfigMap", "s-page")
	now, err := a.get("v1", "ConfigMap", "shared")
	if err != nil || len(now.GetLabels())+len(now.GetAnnotations()) > 0 ||
		len(now.GetOwnerReferences())+len(now.GetFinalizers()) > 0 {
		t.Errorf("got existing object %v, %v; want it unchanged: %v", now, err, shared)
	}
}

// fairs creates a copy of each ConfigMap of a team while the mode of another ConfigMap is on.
const fairs = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: fairs.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Fair
    status: {text: "${settings.data.text}", members: "${size(members)}"}
    conditions: [{type: Open, status: settings.data.mode == 'on'}]
    schema: {properties: {spec: {type: object}}}
  resources:
    - id: settings
      externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {name: shared}}
    - id: members
      externalRef: {apiVersion: v1, kind: ConfigMap, metadata: {selector: {matchLabels: {team: red}}}}
    - id: copies
      forEach: [{member: "${members}"}]
      includeWhen: [settings.data.mode == 'on']
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-${member.metadata.name}"}
        data: {text: "${settings.data.text}"}
`

func TestReference_InCollectionsAndStatus(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(fairs)
	a.waitBlueprint("fairs", is("Serving", "True"))
	a.apply("{apiVersion: GROUP/v1, kind: Fair, metadata: {name: f}, spec: {}}")
	a.wait("GROUP/v1", "Fair", "f", all(is("Ready", "False", "Waiting", "copies: waiting for settings"),
		is("Open", "Unknown", "ValueMissing"), has(int64(0), "status", "members"), has(nil, "status", "text")))
	a.member("a", "red")
	a.member("b", "red")
	a.share("roses", "on")
	a.wait("v1", "ConfigMap", "f-b", has("roses", "data", "text"))
	a.wait("GROUP/v1", "Fair", "f", all(is("Ready", "True", "all 3 resources are ready, with 2 objects"),
		is("Open", "True"), has(int64(2), "status", "members"), has("roses", "status", "text")))
	a.member("b", "blue")
	a.waitGone("v1", "ConfigMap", "f-b")
	first := a.wait("v1", "ConfigMap", "f-a", all())

	// The collection is kept while its includeWhen cannot be evaluated.
	a.delete("v1", "ConfigMap", "shared")
	a.wait("GROUP/v1", "Fair", "f", all(is("Ready", "False", "Waiting"), has(nil, "status", "text")))
	a.wait("v1", "ConfigMap", "f-a", uidIs(string(first.GetUID())))
	a.share("tulips", "off")
	a.waitGone("v1", "ConfigMap", "f-a")
	a.wait("GROUP/v1", "Fair", "f", all(is("Ready", "True", "2 of 3 resources are ready; excluded by includeWhen: copies"),
		is("Open", "False"), has(int64(1), "status", "members"), has("tulips", "status", "text")))
	a.share("tulips", "on")
	a.wait("v1", "ConfigMap", "f-a", has("tulips", "data", "text"))
}

// If nothing changes, an existing object is read once per reconcile.
func TestReference_CostsOneRequestPerReconcile(t *testing.T) {
	a := newAPI(t)
	kubeconfig, proxy := a.proxied()
	p := startServing(t, kubeconfig, append(localMetrics, "--resync-period", "1s")...)
	a.share("roses", "on")
	a.apply(stalls)
	a.apply(stall)
	a.wait("GROUP/v1", "Stall", "s", is("Ready", "True"))
	waitUntilQuiet(t, func() int { return writes(proxy) })
	before, reconciled := len(proxy.Calls()), p.reconciles(a.group)
	eventually(t, func() error {
		if now := p.reconciles(a.group); now < reconciled+3 {
			return fmt.Errorf("the instance was reconciled %d times, want at least 3 resyncs after %d", now, reconciled)
		}
		return nil
	})
	calls := proxy.Calls()[before:]
	most := p.reconciles(a.group) - reconciled + 1 // one reconcile may have started before
	for _, verb := range []string{"get", "list"} {
		requests := 0
		for _, c := range calls {
			if c.Verb == verb && c.Resource == "configmaps" {
				requests++
			}
		}
		if requests == 0 || requests > most {
			t.Errorf("got %d requests to %s ConfigMaps in at most %d reconciles", requests, verb, most)
		}
	}
	if n := count(proxy, func(c apiproxy.Call) bool { return isWrite(c) && c.Resource == "configmaps" }); n != 2 {
		t.Errorf("got %d writes of two children", n)
	}
}

// The kind of a reference and the platform's permissions for it are checked like those of a child.
func TestReference_KindIsCheckedLikeAChildKind(t *testing.T) {
	a := newAPI(t)
	a.platform(append(platformRules(), rule("*", a.group, "*"), rule("list,watch", "", "configmaps"))...)
	reading := func(kind, apiVersion, readKind string) string {
		return making(kind, configMap+namedChild+"}", runsAs) + `
    - id: existing
      externalRef: {apiVersion: ` + apiVersion + `, kind: ` + readKind + `, metadata: {name: a}}`
	}
	a.apply(reading("Vault", "v1", "Secret"))
	a.waitBlueprint("vaults", is("Accepted", "False", "PermissionMissing",
		"spec.resources[1].externalRef: the platform has no permission to list, watch secrets"))
	a.apply(reading("Guide", "GROUP/v1", "Site"))
	a.waitBlueprint("guides", is("Accepted", "False", "Invalid",
		"spec.resources[1].externalRef: unknown kind Site in "+a.group+"/v1"))
	a.apply(making("Site", configMap+namedChild+"}", runsAs))
	a.waitBlueprint("guides", is("Accepted", "True"), is("Serving", "True"))

	a.serviceAccount(a.namespace, "web", rule(writeChildren, "", "configmaps"), rule("get", a.group, "sites"))
	a.consent(a.namespace, "web", "guides."+a.group, "sites."+a.group)
	a.apply("{apiVersion: GROUP/v1, kind: Guide, metadata: {name: g}, spec: {}}")
	a.wait("GROUP/v1", "Guide", "g", is("Ready", "False", "existing: Site "+a.namespace+"/a does not exist"))
	a.apply("{apiVersion: GROUP/v1, kind: Site, metadata: {name: a}, spec: {}}")
	a.wait("GROUP/v1", "Guide", "g", is("Ready", "True"))
}

func TestReference_SizeIsBounded(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.share("roses", "off")
	a.apply(stalls)
	a.apply(stall)
	a.wait("GROUP/v1", "Stall", "s", is("Ready", "True"))
	name := func(i int) string { return fmt.Sprint("large-", i) }
	for i := range 5 {
		a.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name(i) + ", labels: {team: red}}, data: {text: " +
			strings.Repeat("x", 1_000_000) + "}}")
	}
	a.wait("GROUP/v1", "Stall", "s", is("Ready", "False", "Invalid", "spec.resources[1].externalRef: ",
		"more than 4194304 bytes"))
	a.delete("v1", "ConfigMap", name(0))
	a.wait("GROUP/v1", "Stall", "s", is("Ready", "True"))
	a.wait("v1", "ConfigMap", "s-page", has("large-1,large-2,large-3,large-4", "data", "members"))
}
