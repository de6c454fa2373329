package main

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// forgeRevision writes a revision to the status of an instance, as a user who can write the status of the instance.
func (a *api) forgeRevision(name, revision string) {
	a.Helper()
	object, err := a.get("GROUP/v1", "Website", name)
	if err == nil {
		_, err = a.client(object).Patch(a.Context(), object.GetName(), types.MergePatchType,
			fmt.Appendf(nil, `{"status":{"revision":%q}}`, revision), metav1.PatchOptions{}, "status")
	}
	if err != nil {
		a.Fatal(err)
	}
}

// A tenant writes older revisions to the statuses of ten instances. They are more than the instances of other tenants,
// which still have the revision before a faulty one.
func TestAttack_ForgedRevisionsDisplaceNoRevision(t *testing.T) {
	a := newAPI(t)
	evil := a.addNamespace(a.namespace + "-evil")
	first := startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	var forged []string
	for i := range 10 {
		name := fmt.Sprintf("evil-%d", i)
		a.apply(changed(flowers, change{"name: flowers", "name: " + name + ", namespace: " + evil}))
		forged = append(forged, evil+"/"+name)
	}
	victims := a.fleet(3)
	revisions := []string{a.servedName(1)}
	for i, text := range []string{"second", "third"} {
		a.waitBlueprint("websites", hasCounts(13, 13, 0), is("Progressing", "True", "RolloutComplete"))
		a.apply(withText(text))
		revisions = append(revisions, a.servedName(i+2))
	}
	base := revisions[2]
	a.waitBlueprint("websites", is("Progressing", "True", "RolloutComplete"))
	for _, name := range append(victims, forged...) {
		a.wait("GROUP/v1", "Website", name, all(is("Ready", "True"), has(base, "status", "revision")))
	}
	forge := func() {
		t.Helper()
		for i, name := range forged {
			a.forgeRevision(name, revisions[i%2])
		}
	}

	// Without a rollout, the platform corrects the statuses.
	forge()
	for _, name := range forged {
		a.wait("GROUP/v1", "Website", name, has(base, "status", "revision"))
	}

	// The API server rejects the key of a faulty revision.
	first.kill()
	forge()
	a.apply(changed(withText("third"), change{"data: {text: ", "data: {not a key: "}))
	second := startServing(t, a.cluster.Kubeconfig())
	stopped := is("Progressing", "False", "RolloutStopped", "of 13 instances are updated")
	correctsDrift := func() {
		t.Helper()
		b := a.waitBlueprint("websites", stopped)
		faulty, _, _ := unstructured.NestedString(b.Object, "status", "served", "revision")
		for _, name := range victims {
			if len(a.moved([]string{name}, faulty)) > 0 {
				continue
			}
			a.apply(page(name, "text: weeds"))
			a.wait("v1", "ConfigMap", name+"-page", has("third roses", "data", "text"))
		}
		for _, name := range forged {
			if len(a.moved([]string{name}, faulty)) == 0 {
				a.wait("GROUP/v1", "Website", name, has(base, "status", "revision"))
			}
		}
	}
	correctsDrift()
	forge()
	correctsDrift()
	second.kill()
	forge()
	startServing(t, a.cluster.Kubeconfig())
	correctsDrift()

	a.apply(withText("fixed"))
	fixed := a.servedName(5)
	a.waitBlueprint("websites", is("Progressing", "True", "RolloutComplete"))
	for _, name := range append(victims, forged...) {
		a.wait("GROUP/v1", "Website", name, all(is("Ready", "True"), has(fixed, "status", "revision")))
	}
}
