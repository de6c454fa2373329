package main

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// teams creates a ConfigMap for each member, a Secret for each member and region, and a ConfigMap with values from all
// of them.
const teams = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: teams.GROUP}
spec:
  deletionPolicy: Delete
  type:
    group: GROUP
    version: v1
    kind: Team
    schema:
      type: object
      properties:
        spec:
          type: object
          properties:
            regions: {type: boolean, default: true}
            members:
              type: array
              maxItems: 100
              items: {type: object, properties: {name: {type: string}, mail: {type: string}}}
  resources:
    - id: members
      forEach: [{member: "${self.spec.members}"}]
      readyWhen: [each.data.mail != 'unknown']
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-${member.name}"}
        data: {mail: "${member.mail}"}
    - id: keys
      includeWhen: [self.spec.regions]
      forEach: [{page: "${members}"}, {region: "${['eu', 'us']}"}]
      template:
        apiVersion: v1
        kind: Secret
        metadata: {name: "${page.metadata.name}-${region}"}
        stringData: {mail: "${page.data.mail}"}
    - id: summary
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-summary"}
        data: {members: "${members.map(m, m.data.mail).join(' ')}"}
`

// team returns a Team with the named members. A member's mail is its name.
func team(more string, names ...string) string {
	var members []string
	for _, name := range names {
		members = append(members, fmt.Sprintf("{name: %s, mail: %[1]s}", name))
	}
	return "{apiVersion: GROUP/v1, kind: Team, metadata: {name: t}, spec: {members: [" + strings.Join(members, ", ") +
		"]" + more + "}}"
}

func TestCollections_MatchTheirLists(t *testing.T) {
	a := newAPI(t)
	kubeconfig, proxy := a.proxied()
	p := startServing(t, kubeconfig)
	a.apply(teams)
	a.waitBlueprint("teams", is("Accepted", "True"), is("Serving", "True"))
	a.apply(team("", "ann", "bob"))
	a.wait("GROUP/v1", "Team", "t", is("Ready", "True", "all 3 resources are ready, with 7 objects"))
	a.wait("v1", "ConfigMap", "t-summary", has("ann bob", "data", "members"))
	ann := a.wait("v1", "ConfigMap", "t-ann", has("ann", "data", "mail"))
	if got := ann.GetLabels()["platform.example.com/resource-id"]; got != "members" {
		t.Errorf("got label %q", got)
	}
	a.wait("v1", "Secret", "t-bob-us", has("Ym9i", "data", "mail"))

	// Objects are identified by their names.
	a.apply(team("", "cid", "ann"))
	a.wait("v1", "ConfigMap", "t-summary", has("cid ann", "data", "members"))
	a.waitGone("v1", "ConfigMap", "t-bob")
	a.waitGone("v1", "Secret", "t-bob-eu")
	a.wait("GROUP/v1", "Team", "t", is("Ready", "True", "7 objects"))
	a.wait("v1", "ConfigMap", "t-ann", uidIs(string(ann.GetUID())))

	// A new process does not write anything.
	p.kill()
	waitUntilQuiet(t, func() int { return writes(proxy) })
	before := len(proxy.Calls())
	startServing(t, kubeconfig)
	a.delete("v1", "ConfigMap", "t-cid")
	a.wait("v1", "ConfigMap", "t-cid", has("cid", "data", "mail"))
	for _, c := range proxy.Calls()[before:] {
		if isWrite(c) && (c.Resource == "configmaps" && c.Name != "t-cid" || c.Resource == "secrets") {
			t.Errorf("a restart wrote %+v", c)
		}
	}

	// Invalid lists and duplicates neither change nor delete objects.
	unchanged := func(reason string, words ...string) {
		t.Helper()
		a.wait("GROUP/v1", "Team", "t", is("Ready", "False", append(words, reason)...))
		for _, name := range []string{"t-ann", "t-cid"} {
			if now, err := a.get("v1", "ConfigMap", name); err != nil || now.GetDeletionTimestamp() != nil {
				t.Errorf("%s is %v, %v", name, now, err)
			}
		}
		if _, err := a.get("v1", "ConfigMap", "t-dan"); !apierrors.IsNotFound(err) {
			t.Errorf("a new item was created: %v", err)
		}
	}
	a.apply(team("", "dan", "ann", "dan"))
	unchanged("Invalid", "with member[2]: ConfigMap t-dan is already rendered by members with member[0]")
	a.apply("{apiVersion: GROUP/v1, kind: Team, metadata: {name: t}, spec: {}}")
	unchanged("Invalid", "spec.resources[0].forEach[0].member: ${self.spec.members}: self.spec.members does not exist")

	// Dependent resources wait for all items. Nothing is pruned in the meantime.
	a.apply(strings.Replace(team("", "ann", "eve"), "mail: eve", "mail: unknown", 1))
	a.wait("GROUP/v1", "Team", "t", is("Ready", "False", "Waiting", "members: 1 of 2 are not ready: "+a.namespace+
		"/t-eve: waiting for readyWhen", "summary: waiting for members"))
	if _, err := a.get("v1", "ConfigMap", "t-cid"); err != nil {
		t.Errorf("an object was pruned while others were waiting: %v", err)
	}

	a.apply(team(", regions: false", "ann", "eve"))
	a.waitGone("v1", "Secret", "t-ann-eu")
	a.wait("GROUP/v1", "Team", "t", is("Ready", "True", "2 of 3 resources are ready, with 3 objects",
		"excluded by includeWhen: keys"))
	a.apply(team(""))
	for _, name := range []string{"t-ann", "t-cid", "t-eve"} {
		a.waitGone("v1", "ConfigMap", name)
	}
	a.wait("GROUP/v1", "Team", "t", is("Ready", "True", "all 3 resources are ready, with 1 object"))
}

// Objects that depend on a collection are deleted before the collection.
func TestCollections_AreDeletedInOrder(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(teams)
	a.apply(team("", "ann", "bob"))
	a.wait("GROUP/v1", "Team", "t", is("Ready", "True"))
	const held = "{apiVersion: v1, kind: Secret, metadata: {name: t-bob-eu, finalizers: [%s]}}"
	a.apply(fmt.Sprintf(held, "example.com/x"))
	a.delete("GROUP/v1", "Team", "t")
	a.waitGone("v1", "Secret", "t-ann-eu")
	a.wait("GROUP/v1", "Team", "t", is("Ready", "False", "Deleting",
		"keys: waiting for Secret "+a.namespace+"/t-bob-eu to be deleted; blocked by finalizer example.com/x"))
	if now, err := a.get("v1", "ConfigMap", "t-ann"); err != nil || now.GetDeletionTimestamp() != nil {
		t.Errorf("got member %v, %v; want it to be deleted after the keys", now, err)
	}
	a.apply(fmt.Sprintf(held, ""))
	a.waitGone("GROUP/v1", "Team", "t")
	a.waitGone("v1", "ConfigMap", "t-ann")
}

// A resource becomes a collection and then a single resource again.
func TestCollections_AreRolledOut(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	single := strings.NewReplacer(
		`forEach: [{member: "${self.spec.members}"}]`, "", "each.data", "members.data", "${member.mail}", "m",
		`forEach: [{page: "${members}"}, {region: "${['eu', 'us']}"}]`, "",
		"${page.metadata.name}-${region}", "${members.metadata.name}",
		"${page.data.mail}", "m", "-${member.name}", "-single", "members.map(m, m.data.mail).join(' ')", "members.data.mail",
	).Replace(teams)
	a.apply(single)
	a.apply(team("", "ann", "bob"))
	a.wait("GROUP/v1", "Team", "t", is("Ready", "True", "all 3 resources are ready"))
	a.apply(teams)
	a.wait("v1", "ConfigMap", "t-summary", has("ann bob", "data", "members"))
	a.waitGone("v1", "ConfigMap", "t-single")
	a.wait("GROUP/v1", "Team", "t", is("Ready", "True", "7 objects"))
	a.apply(single)
	a.wait("v1", "ConfigMap", "t-summary", has("m", "data", "members"))
	for _, name := range []string{"t-ann", "t-bob"} {
		a.waitGone("v1", "ConfigMap", name)
	}
	a.wait("GROUP/v1", "Team", "t", is("Ready", "True", "all 3 resources are ready"))
}

// The children of a collection can be in other namespaces, where owner references have no effect.
func TestCollections_InOtherNamespaces(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	near, far := a.addNamespace(a.namespace+"-near"), a.addNamespace(a.namespace+"-far")
	a.apply(making("Spread", `{apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${self.metadata.name}", namespace: "${place}"}}
      forEach: [{place: "${self.spec.a.split(' ')}"}]`, "  allowedNamespaces: ['*']"))
	instance := "{apiVersion: GROUP/v1, kind: Spread, metadata: {name: s}, spec: {a: %q}}"
	a.apply(fmt.Sprintf(instance, near+" "+far))
	a.wait("GROUP/v1", "Spread", "s", is("Ready", "True", "with 2 objects"))
	a.wait("v1", "ConfigMap", far+"/s", func(*unstructured.Unstructured) error { return nil })
	a.apply(fmt.Sprintf(instance, near))
	a.waitGone("v1", "ConfigMap", far+"/s")
	a.wait("GROUP/v1", "Spread", "s", is("Ready", "True", "with 1 object"))
	a.delete("GROUP/v1", "Spread", "s")
	a.waitGone("GROUP/v1", "Spread", "s")
	a.waitGone("v1", "ConfigMap", near+"/s")
}
