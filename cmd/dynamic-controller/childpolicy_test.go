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

func TestTemplatesThatEscalateAreRefused(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(making("First", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}")) // returns when Blueprints are defined
	author := a.author()
	const at = "spec.resources[0].template"
	for name, test := range map[string]struct {
		template string
		want     []string
	}{
		"a binding of a cluster role": {
			"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: GROUP}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}}",
			[]string{at + ".kind: ", "--allow-child-kinds=ClusterRoleBinding.rbac.authorization.k8s.io"},
		},
		"a role": {
			"{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: a}}",
			[]string{at + ".kind: ", "--allow-child-kinds=Role.rbac.authorization.k8s.io"},
		},
		"a webhook": {
			"{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: GROUP}}",
			[]string{at + ".kind: ", "--allow-child-kinds=MutatingWebhookConfiguration.admissionregistration.k8s.io"},
		},
		"an admission policy": {
			"{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: GROUP}}",
			[]string{at + ".kind: ", "--allow-child-kinds=ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io"},
		},
		"an aggregated API": {
			"{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.GROUP}}",
			[]string{at + ".kind: ", "--allow-child-kinds=APIService.apiregistration.k8s.io"},
		},
		"a type": {
			"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: as.GROUP}}",
			[]string{at + ".kind: ", "--allow-child-kinds=CustomResourceDefinition.apiextensions.k8s.io"},
		},
		"a Blueprint": {
			"{apiVersion: platform.example.com/v1alpha1, kind: Blueprint, metadata: {name: as.GROUP}}",
			[]string{at + ".kind: ", "--allow-child-kinds=Blueprint.platform.example.com"},
		},
		"a certificate": {
			"{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: GROUP}}",
			[]string{at + ".kind: ", "--allow-child-kinds=CertificateSigningRequest.certificates.k8s.io"},
		},
		"a volume of the node's files": {
			"{apiVersion: v1, kind: PersistentVolume, metadata: {name: GROUP}, spec: {hostPath: {path: /}}}",
			[]string{at + ".kind: ", "--allow-child-kinds=PersistentVolume"},
		},
		"a service account's token": {
			"{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: a, annotations: {kubernetes.io/service-account.name: default}}}",
			[]string{at + ".type: ", "--allow-child-kinds=Secret/kubernetes.io/service-account-token"},
		},
		"a namespace without pod security": {
			"{apiVersion: v1, kind: Namespace, metadata: {name: GROUP, labels: {pod-security.kubernetes.io/enforce: privileged}}}",
			[]string{at + `.metadata.labels["pod-security.kubernetes.io/enforce"]: `, "--allow-child-kinds=Namespace/pod-security.kubernetes.io"},
		},
		"a namespace of Kubernetes": {
			"{apiVersion: v1, kind: Namespace, metadata: {name: kube-evil}}",
			[]string{at + ".metadata.name: ", `"kube-evil"`, "--allow-child-namespaces"},
		},
		"finalizers": {
			"{apiVersion: v1, kind: ConfigMap, metadata: {name: a, finalizers: [example.com/forever]}}",
			[]string{at + ".metadata.finalizers: must not be set in a template"},
		},
		"a child in the platform's namespace": {
			"{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: platform-system}}",
			[]string{at + ".metadata.namespace: ", `"platform-system"`, "--allow-child-namespaces"},
		},
		"a child in a namespace of Kubernetes": {
			"{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: kube-system}}",
			[]string{at + ".metadata.namespace: ", `"kube-system"`, "--allow-child-namespaces"},
		},
		"a child in any namespace": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${self.spec.a}"}}`,
			[]string{at + ".metadata.namespace: ${self.spec.a}: ", "spec.allowedNamespaces"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *author
			sub.T = t
			sub.group = strings.ToLower(strings.NewReplacer(" ", "-", "'", "").Replace(name)) + "." + a.group
			text := making("Thing", test.template)
			sub.apply(text)
			sub.waitBlueprint("things", is("Accepted", "False", test.want...), is("Serving", "False"))
		})
	}
}

func TestInstancesCannotEscalate(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	author, tenant := a.author(), a.tenant()
	author.apply(making("Vault", `{apiVersion: v1, kind: Secret, type: "${self.spec.a}", metadata: {name: "${self.metadata.name}", annotations: {kubernetes.io/service-account.name: default}}}`))
	author.apply(making("Place", `{apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}", namespace: "${self.spec.a}"}}`,
		"  allowedNamespaces: [test-*, kube-*, platform-*]"))
	author.apply(making("Space", `{apiVersion: v1, kind: Namespace, metadata: {name: "${self.spec.a}", labels: "${{'pod-security.kubernetes.io/enforce': self.spec.b}}"}}`))
	author.apply(making("Note", `{apiVersion: v1, kind: ConfigMap, metadata: {name: "${self.metadata.name}"}}`))
	for _, name := range []string{"vaults", "places", "spaces", "notes"} {
		a.waitBlueprint(name, is("Accepted", "True"), is("Serving", "True"))
	}
	const at = "spec.resources[0].template"
	for name, test := range map[string]struct {
		kind, namespace, spec string
		want                  []string
		child                 string // kind and name of what must not exist
	}{
		"a service account's token": {
			"Vault", "", "{a: kubernetes.io/service-account-token}",
			[]string{"Invalid", at + ".type: ", "--allow-child-kinds=Secret/kubernetes.io/service-account-token"}, "Secret attack",
		},
		"a child in kube-system, though the pattern matches": {
			"Place", "", "{a: kube-system}",
			[]string{"Invalid", at + ".metadata.namespace: ", `"kube-system"`, "--allow-child-namespaces"}, "ConfigMap kube-system/attack",
		},
		"a child in the platform's namespace, though the pattern matches": {
			"Place", "", "{a: platform-system}",
			[]string{"Invalid", at + ".metadata.namespace: ", `"platform-system"`}, "ConfigMap platform-system/attack",
		},
		"a child in a namespace that the Blueprint does not list": {
			"Place", "", "{a: default}",
			[]string{"Invalid", at + ".metadata.namespace: ", `"default"`, "spec.allowedNamespaces"}, "ConfigMap default/attack",
		},
		"a namespace that is called like Kubernetes'": {
			"Space", "", "{a: kube-attack, b: restricted}",
			[]string{"Invalid", at + ".metadata.name: ", `"kube-attack"`}, "Namespace kube-attack",
		},
		"a namespace without pod security": {
			"Space", "", "{a: attack, b: privileged}",
			[]string{"Invalid", at + `.metadata.labels["pod-security.kubernetes.io/enforce"]: `}, "Namespace attack",
		},
		"an instance in the platform's namespace": {
			"Note", "platform-system", "{}",
			[]string{"Invalid", at + ".metadata.namespace: ", `"platform-system"`}, "ConfigMap platform-system/attack",
		},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *tenant
			sub.T = t
			metadata := "{name: attack}"
			if test.namespace != "" {
				metadata = "{name: attack, namespace: " + test.namespace + "}"
			}
			made := sub.apply("{apiVersion: GROUP/v1, kind: " + test.kind + ", metadata: " + metadata + ", spec: " + test.spec + "}")
			defer func() {
				_ = sub.client(made).Delete(t.Context(), made.GetName(), metav1.DeleteOptions{})
			}()
			where := strings.TrimPrefix(test.namespace+"/attack", "/")
			sub.wait("GROUP/v1", test.kind, where, is("Ready", "False", test.want...))
			kind, child, _ := strings.Cut(test.child, " ")
			if obj, err := a.get("v1", kind, child); !apierrors.IsNotFound(err) {
				t.Errorf("%s is %v, %v", test.child, obj, err)
			}
		})
	}
	tenant.apply("{apiVersion: GROUP/v1, kind: Place, metadata: {name: good}, spec: {a: " + a.namespace + "}}")
	a.wait("GROUP/v1", "Place", "good", is("Ready", "True"))
}

func TestFlagsAllowRestrictedChildren(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig(),
		"--allow-child-kinds", "Role.rbac.authorization.k8s.io,Secret/kubernetes.io/service-account-token", "--allow-child-namespaces", "platform-*")
	a.apply(making("Grant", `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: "${self.metadata.name}"}, rules: []}`))
	a.apply(making("Binding", `{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: a}}`))
	a.apply(making("Vault", `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: "${self.metadata.name}", annotations: {kubernetes.io/service-account.name: default}}}`))
	a.apply(making("Place", `{apiVersion: v1, kind: ConfigMap, metadata: {name: "`+a.namespace+`", namespace: platform-system}}`))
	a.waitBlueprint("bindings", is("Accepted", "False", "--allow-child-kinds=RoleBinding.rbac.authorization.k8s.io"))
	for _, kind := range []string{"Grant", "Vault", "Place"} {
		a.apply("{apiVersion: GROUP/v1, kind: " + kind + ", metadata: {name: allowed}}")
		a.wait("GROUP/v1", kind, "allowed", is("Ready", "True"))
	}
	a.delete("GROUP/v1", "Place", "allowed")
	a.waitGone("v1", "ConfigMap", "platform-system/"+a.namespace)
}

func TestUnknownKindsThatAreAllowedAreReported(t *testing.T) {
	a := newAPI(t)
	p := start(t, "run", "--kubeconfig", a.cluster.Kubeconfig(), "--allow-child-kinds", "ConfigMap", "--allow-child-namespaces", "Kube_*")
	if code := p.wait(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	for _, want := range []string{`invalid --allow-child-kinds "ConfigMap": `, `invalid --allow-child-namespaces "Kube_*": `} {
		if !strings.Contains(p.output(), want) {
			t.Errorf("got %q, want %q", p.output(), want)
		}
	}
}
