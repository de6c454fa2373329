package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// revisions returns the stored revisions of a Blueprint, oldest first.
func (a *api) revisions(name string) []appsv1.ControllerRevision {
	a.Helper()
	list, err := a.kube.AppsV1().ControllerRevisions(platformNamespace).List(a.Context(), metav1.ListOptions{
		LabelSelector: "platform.example.com/blueprint=" + name + "." + a.group,
	})
	if err != nil {
		a.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
	return list.Items
}

// waitRevisions waits until the stored revisions have the given numbers.
func (a *api) waitRevisions(name string, numbers ...int64) {
	a.Helper()
	eventually(a.T, func() error {
		var got []int64
		for _, r := range a.revisions(name) {
			got = append(got, r.Revision)
		}
		if !slices.Equal(got, numbers) {
			return fmt.Errorf("got revisions %v, want %v", got, numbers)
		}
		return nil
	})
}

func withText(text string) string {
	return strings.ReplaceAll(websites, "${self.spec.text}", text+" ${self.spec.text}")
}

func TestRevisions_AreStoredAndTrimmed(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	limited := func(b string) string { return strings.Replace(b, "spec:\n", "spec:\n  revisionHistoryLimit: 2\n", 1) }
	for i, text := range []string{"first", "second", "third"} {
		a.apply(limited(withText(text)))
		a.waitBlueprint("websites", is("Serving", "True", fmt.Sprintf("generation %d is served", i+1)))
	}
	a.waitRevisions("websites", 1, 2, 3)
	a.apply(flowers)
	first := a.revisions("websites")[0]

	// If a stored spec is applied again, it is not stored a second time.
	var data struct {
		Blueprint, UID string
		Spec           map[string]any
	}
	if err := yaml.Unmarshal(first.Data.Raw, &data); err != nil {
		t.Fatal(err)
	}
	b, err := a.get(blueprintVersion, "Blueprint", "websites."+a.group)
	if err != nil || data.Blueprint != b.GetName() || data.UID != string(b.GetUID()) {
		t.Errorf("got first revision %+v for Blueprint %v, %v", data, b.GetUID(), err)
	}
	delete(data.Spec, "revisionHistoryLimit")
	again := &unstructured.Unstructured{Object: map[string]any{"spec": data.Spec}}
	again.SetAPIVersion(blueprintVersion)
	again.SetKind("Blueprint")
	again.SetName(b.GetName())
	text, err := yaml.Marshal(again.Object)
	if err != nil {
		t.Fatal(err)
	}
	a.apply(limited(string(text)))
	a.waitBlueprint("websites", is("Serving", "True", "generation 4 is served"),
		has(first.Name, "status", "served", "revision"))
	a.wait("v1", "ConfigMap", "flowers-page", has("first roses", "data", "text"))
	a.waitRevisions("websites", 2, 3, 4)

	// The oldest revision is deleted first.
	a.apply(limited(withText("fifth")))
	a.waitRevisions("websites", 3, 4, 5)
	a.apply(strings.Replace(withText("fifth"), "spec:\n", "spec:\n  revisionHistoryLimit: 0\n", 1))
	a.waitRevisions("websites", 5)

	stored := a.revisions("websites")[0]
	_, err = a.kube.AppsV1().ControllerRevisions(platformNamespace).Patch(t.Context(), stored.Name, types.MergePatchType,
		[]byte(`{"data":{"spec":{"resources":null}}}`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("a stored revision can be changed: %v", err)
	}
}

func TestRevisions_AfterTheDeletionOfTheBlueprint(t *testing.T) {
	for policy, left := range map[string]int{"Retain": 2, "Delete": 0} {
		t.Run(policy, func(t *testing.T) {
			a := newAPI(t)
			startServing(t, a.cluster.Kubeconfig())
			for i, text := range []string{"first", "second"} {
				a.apply(strings.Replace(withText(text), "spec:\n", "spec:\n  deletionPolicy: "+policy+"\n", 1))
				a.waitBlueprint("websites", is("Serving", "True", fmt.Sprintf("generation %d is served", i+1)))
			}
			a.waitRevisions("websites", 1, 2)
			a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
			a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
			if n := len(a.revisions("websites")); n != left {
				t.Errorf("got %d stored revisions, want %d", n, left)
			}
			// A new Blueprint with the same name has its own history. It does not serve revisions of the earlier Blueprint.
			a.apply(strings.ReplaceAll(websites, "${self.spec.text}", "${self.spec.txt}"))
			a.waitBlueprint("websites", is("Accepted", "False"), is("Serving", "False"))
			a.apply(withText("third"))
			a.waitBlueprint("websites", is("Serving", "True", "generation 2 is served"))
			a.apply(flowers)
			a.wait("v1", "ConfigMap", "flowers-page", has("third roses", "data", "text"))
			if n := len(a.revisions("websites")); n != left+1 {
				t.Errorf("got %d stored revisions, want %d", n, left+1)
			}
		})
	}
}

func TestAttack_ManipulatedRevisionIsNotServed(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.apply(strings.ReplaceAll(websites, "${self.spec.text}", "${self.spec.txt}"))
	a.waitBlueprint("websites", is("Accepted", "False"))
	p.kill()
	genuine := a.revisions("websites")[0]
	revisions := a.kube.AppsV1().ControllerRevisions(platformNamespace)
	for name, data := range map[string]string{
		"of-another":  strings.Replace(string(genuine.Data.Raw), `"uid":"`, `"uid":"0`, 1),
		"empty":       `{}`,
		"malformed":   `{"blueprint":"websites.` + a.group + `","uid":"x","spec":{"resources":3}}`,
		"of-a-string": `{"blueprint":["websites"],"uid":{},"spec":"x"}`,
	} {
		other := &appsv1.ControllerRevision{Revision: 99, Data: runtime.RawExtension{Raw: []byte(data)}}
		other.Name, other.Labels = name+"-"+a.namespace, maps.Clone(genuine.Labels)
		other.Annotations = map[string]string{"platform.example.com/generation": "99"}
		if _, err := revisions.Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = revisions.Delete(context.WithoutCancel(t.Context()), other.Name, metav1.DeleteOptions{})
		})
	}
	p = startServing(t, a.cluster.Kubeconfig())
	a.apply(strings.ReplaceAll(flowers, "roses", "tulips"))
	a.wait("v1", "ConfigMap", "flowers-page", has("tulips", "data", "text"))
	a.waitBlueprint("websites", is("Serving", "True", "generation 1 is served"),
		has(genuine.Name, "status", "served", "revision"))
	p.waitLog(line{Msg: "Transform failed"})
}

// The permissions on a revision's children can be revoked after the revision was accepted.
func TestPermissions_AreCheckedAfterARestart(t *testing.T) {
	a := newAPI(t)
	name := a.platformName()
	kubeconfig := a.account(name, append(platformRules(),
		rule("get,list,watch,create,patch,delete", "", "configmaps,services"),
		rule("get,list,watch,patch", a.group, "*"))...)
	p := startServing(t, kubeconfig)
	a.apply(websites)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.apply(strings.ReplaceAll(websites, "${self.spec.text}", "${self.spec.txt}"))
	a.waitBlueprint("websites", is("Accepted", "False"), is("Serving", "True"))
	p.kill()
	role, err := a.kube.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	services := slices.IndexFunc(role.Rules,
		func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "services") })
	role.Rules[services].Resources = []string{"configmaps"}
	if role, err = a.kube.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The platform caches granted permissions for several minutes.
	a.waitAccess(metav1.NamespaceDefault, name, "", false, rule("create", "", "services"))
	startServing(t, kubeconfig)
	a.waitBlueprint("websites", is("Accepted", "False", "unknown field \"txt\""),
		is("Serving", "False", "no longer accepted", "spec.resources[2].template: the platform has no permission to"))
	role.Rules[services].Resources = []string{"configmaps", "services"}
	if _, err = a.kube.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	a.waitBlueprint("websites", is("Accepted", "False"), is("Serving", "True", "generation 1 is served"))
}

func TestRevisions_StorageFailureIsReported(t *testing.T) {
	a := newAPI(t)
	name := a.platformName()
	rules := append(slices.DeleteFunc(platformRules(),
		func(r rbacv1.PolicyRule) bool { return r.Resources[0] == "controllerrevisions" }),
		rule("*", "", "*"), rule("*", a.group, "*"))
	startServing(t, a.account(name, rules...))
	a.apply(websites)
	a.waitBlueprint("websites", is("Accepted", "Unknown", "the stored revisions cannot be read",
		"controllerrevisions.apps in namespace "+platformNamespace),
		is("Serving", "False", "RevisionsUnavailable"))
	grant := func(verbs string) {
		t.Helper()
		role, err := a.kube.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			role.Rules = append(role.Rules, rule(verbs, "apps", "controllerrevisions"))
			_, err = a.kube.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	grant("list,watch")
	a.waitBlueprint("websites", is("Accepted", "True"),
		is("Serving", "False", "RevisionNotStored", "generation 1 is accepted but not served", "cannot create resource"))
	if _, err := a.get("apiextensions.k8s.io/v1", "CustomResourceDefinition",
		"websites."+a.group); !apierrors.IsNotFound(err) {
		t.Errorf("the type of a Blueprint that is not served exists: %v", err)
	}
	grant("create,patch,delete,get")
	a.waitBlueprint("websites", is("Accepted", "True"), is("Serving", "True", "generation 1 is served"))
}
