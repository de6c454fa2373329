package main

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// losesFinalizer is true for writes that remove a finalizer of the platform.
const losesFinalizer = "has(oldObject.metadata.finalizers) && (!has(object.metadata.finalizers) || " +
	"oldObject.metadata.finalizers.exists(f, f.startsWith('platform.example.com/') && !(f in object.metadata.finalizers)))"

// withoutFinalizers returns the error of a dry run that removes the finalizers of an object.
func (a *api) withoutFinalizers(apiVersion, kind, name string) func() error {
	return func() error {
		object, err := a.get(apiVersion, kind, name)
		if err != nil {
			return nil //nolint:nilerr // the policy has not denied anything
		}
		_, err = a.client(object).Patch(a.Context(), object.GetName(), types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{DryRun: onlyDry})
		return err
	}
}

// Each step of the deletion of a Blueprint or an instance can fail. The status then contains the error, and the
// deletion continues when the cause is removed.
func TestRelease_FailuresAreReported(t *testing.T) {
	for name, test := range map[string]struct {
		blueprint string
		// deny makes a step fail until allow is called.
		deny func(a *api) (allow func())
	}{
		"the type cannot be released": {websites, (*api).freezeTypes},
		"an instance cannot be released": {websites, func(a *api) func() {
			resource := schema.GroupVersionResource{Group: a.group, Version: "v1", Resource: "websites"}
			return a.denyWrites(resource, losesFinalizer, a.withoutFinalizers("GROUP/v1", "Website", "flowers"))
		}},
		"the Blueprint cannot be released": {websites, func(a *api) func() {
			return a.denyWrites(blueprint.GroupVersionResource,
				"object.metadata.name == 'websites.GROUP' && "+losesFinalizer,
				a.withoutFinalizers(blueprintVersion, "Blueprint", "websites."+a.group))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			startServing(t, a.cluster.Kubeconfig())
			a.apply(test.blueprint)
			a.apply(flowers)
			a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
			allow := test.deny(a)
			a.delete(blueprintVersion, "Blueprint", "websites."+a.group)
			a.waitBlueprint("websites", is("Serving", "False", "Deleting", "frozen for a test"))
			a.waitWhy("blueprint/websites.GROUP", 1, "Deleting: ", "frozen for a test")
			allow()
			a.waitGone(blueprintVersion, "Blueprint", "websites."+a.group)
		})
	}
}

// The finalizer of an instance cannot be removed. If only deletions are processed, the platform does not know whether
// an existing type has a status.
func TestRelease_FailureOfAnInstanceIsReported(t *testing.T) {
	for name, setUp := range map[string]func(a *api) (withdraw func()){
		"of a served Blueprint": func(a *api) func() {
			a.apply(websites)
			return nil
		},
		"without consent to its type": func(a *api) func() {
			a.apply(existingCRDWithStatus)
			a.setConsent(`"websites.` + a.group + `"`)
			a.apply(withNamedType("websites"))
			return func() {
				a.setConsent(`null`)
				a.waitBlueprint("websites", is("Serving", "False", "only deletions are processed"))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			startServing(t, a.cluster.Kubeconfig())
			withdraw := setUp(a)
			a.waitBlueprint("websites", is("Serving", "True"))
			a.apply(flowers)
			a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
			if withdraw != nil {
				withdraw()
			}
			resource := schema.GroupVersionResource{Group: a.group, Version: "v1", Resource: "websites"}
			allow := a.denyWrites(resource, losesFinalizer, a.withoutFinalizers("GROUP/v1", "Website", "flowers"))
			a.delete("GROUP/v1", "Website", "flowers")
			a.wait("GROUP/v1", "Website", "flowers", is("Ready", "False", "frozen for a test"))
			if withdraw == nil { // otherwise, the lack of consent is the most probable cause
				a.waitWhy("website.GROUP/flowers", 1, "frozen for a test")
			}
			allow()
			a.waitGone("GROUP/v1", "Website", "flowers")
		})
	}
}

// The platform lacks a permission that the deletion needs. No decision can be made about the new generation, because
// the stored revision cannot be read.
func TestRelease_MissingPermissionIsReported(t *testing.T) {
	a := newAPI(t)
	name := a.platformName()
	kubeconfig := a.account(name, everything())
	first := startServing(t, kubeconfig)
	a.apply(deleting)
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	a.apply(changed(deleting, change{"${self.spec.text}", "${self.spec.txt}"}))
	a.waitBlueprint("websites", is("Accepted", "False"))
	first.kill()
	setRules := func(rules ...rbacv1.PolicyRule) {
		t.Helper()
		role, err := a.kube.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			role.Rules = rules
			_, err = a.kube.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	reads := append(platformRules(), rule("*", "", "*"), rule("*", a.group, "*"))
	for i := range reads {
		if reads[i].Resources[0] == "controllerrevisions" {
			reads[i].Verbs = []string{"list", "watch", "create", "patch", "delete"}
		}
	}
	setRules(reads...)
	a.waitAccess(metav1.NamespaceDefault, name, platformNamespace, false, rule("get", "apps", "controllerrevisions"))
	startServing(t, kubeconfig)
	a.apply(changed(deleting, change{"${self.spec.text}", "${self.spec.tex}"}))
	a.waitBlueprint("websites", is("Accepted", "Unknown", "NotValidated", "controllerrevisions"))
	a.waitWhy("blueprint/websites.GROUP", 1, "NotValidated: ", "controllerrevisions")
	setRules(everything())
	a.waitBlueprint("websites", is("Accepted", "False", "Invalid"), is("Serving", "True", "generation 1 is served"))
}
