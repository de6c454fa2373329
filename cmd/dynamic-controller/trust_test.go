package main

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

// as returns the API as an account with only these rights uses it.
func (a *api) as(name string, rules ...rbacv1.PolicyRule) *api {
	a.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", a.account(a.namespace+"-"+name, rules...))
	if err != nil {
		a.Fatal(err)
	}
	other := *a
	if other.dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		a.Fatal(err)
	}
	return &other
}

// author can write Blueprints and nothing else.
func (a *api) author() *api {
	a.Helper()
	return a.as("author", rbacv1.PolicyRule{
		APIGroups: []string{"platform.example.com"}, Resources: []string{"blueprints"}, Verbs: []string{rbacv1.VerbAll},
	})
}

// tenant can write objects of the test's group and nothing else.
func (a *api) tenant() *api {
	a.Helper()
	return a.as("tenant", rbacv1.PolicyRule{
		APIGroups: []string{a.group}, Resources: []string{rbacv1.ResourceAll}, Verbs: []string{rbacv1.VerbAll},
	})
}

// making is a Blueprint of the kind whose instances become one object. Its spec has strings a and b.
func making(kind, template string, fields ...string) string {
	return `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: ` + strings.ToLower(kind) + `s.GROUP}
spec:
` + strings.Join(fields, "\n") + `
  type:
    group: GROUP
    version: v1
    kind: ` + kind + `
    schema:
      properties:
        spec: {type: object, properties: {a: {type: string}, b: {type: string}}}
  resources:
    - id: child
      template: ` + template
}

func TestTemplatesThatEscalateAreRejected(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	// This returns when the CustomResourceDefinition of Blueprints is established.
	a.apply(making("First", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}"))
	author := a.author()
	const at = "spec.resources[0].template"
	for name, test := range map[string]struct {
		metadata string
		want     []string
	}{
		"finalizers": {
			"{name: a, finalizers: [example.com/forever]}",
			[]string{at + ".metadata.finalizers: must not be set in a template"},
		},
		"labels of the platform": {
			"{name: a, labels: {platform.example.com/instance: other}}",
			[]string{at + ".metadata.labels: keys under platform.example.com/ must not be set in a template"},
		},
		"a child in any namespace": {
			`{name: a, namespace: "${self.spec.a}"}`,
			[]string{at + ".metadata.namespace: ${self.spec.a}: ", "spec.allowedNamespaces"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *author
			sub.T = t
			sub.group = strings.ReplaceAll(name, " ", "-") + "." + a.group
			sub.apply(making("Thing", "{apiVersion: v1, kind: ConfigMap, metadata: "+test.metadata+"}"))
			sub.waitBlueprint("things", is("Accepted", "False", test.want...), is("Serving", "False"))
		})
	}
}

func TestInstancesCannotEscalate(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	author, tenant := a.author(), a.tenant()
	author.apply(making("Place", `{apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}", `+
		`namespace: "${self.spec.a}"}}`,
		"  allowedNamespaces: [test-*]"))
	author.apply(making("Label", `{apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}", labels: `+
		`"${{self.spec.a: self.spec.b}}"}}`))
	for _, name := range []string{"places", "labels"} {
		a.waitBlueprint(name, is("Accepted", "True"), is("Serving", "True"))
	}
	const at = "spec.resources[0].template.metadata"
	for name, test := range map[string]struct {
		kind, spec string
		want       []string
		child      string // name of the ConfigMap that must not exist
	}{
		"a child in a namespace that the Blueprint does not list": {
			"Place", "{a: default}", []string{"Invalid", at + ".namespace: ", `"default"`, "spec.allowedNamespaces"},
			"default/attack",
		},
		"a label of the platform": {
			"Label", "{a: platform.example.com/instance, b: other}",
			[]string{"Invalid", at + ".labels: keys under platform.example.com/"}, "attack",
		},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *tenant
			sub.T = t
			made := sub.apply("{apiVersion: GROUP/v1, kind: " + test.kind + ", metadata: {name: attack}, spec: " + test.spec +
				"}")
			defer func() {
				_ = sub.client(made).Delete(t.Context(), made.GetName(), metav1.DeleteOptions{})
			}()
			sub.wait("GROUP/v1", test.kind, "attack", is("Ready", "False", test.want...))
			if obj, err := a.get("v1", "ConfigMap", test.child); !apierrors.IsNotFound(err) {
				t.Errorf("%s is %v, %v", test.child, obj, err)
			}
		})
	}
	tenant.apply("{apiVersion: GROUP/v1, kind: Place, metadata: {name: good}, spec: {a: " + a.namespace + "}}")
	a.wait("GROUP/v1", "Place", "good", is("Ready", "True"))
}
