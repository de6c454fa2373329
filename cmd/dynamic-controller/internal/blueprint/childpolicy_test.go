package blueprint_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// allowingNamespaces adds spec.allowedNamespaces to a Blueprint.
func allowingNamespaces(text string, patterns ...string) string {
	return strings.Replace(text, "spec:\n", "spec:\n  allowedNamespaces: ['"+strings.Join(patterns, "', '")+"']\n", 1)
}

// scopes reports which of the kinds in these tests are in namespaces.
func scopes(gvk schema.GroupVersionKind) (namespaced, known bool) {
	switch gvk.Kind {
	case "Namespace", "PersistentVolume", "ClusterRole":
		return false, true
	}
	return true, true
}

func TestCompile_childPolicy(t *testing.T) {
	const at = "spec.resources[0].template"
	everything := blueprint.ChildPolicy{
		OwnNamespace: "platform",
		Kinds:        []string{"Role.rbac.authorization.k8s.io", "PersistentVolume", "Secret/kubernetes.io/service-account-token", "Namespace/pod-security.kubernetes.io"},
		Namespaces:   []string{"kube-*", "platform"},
	}
	for reason, c := range map[string]struct {
		template string
		policy   blueprint.ChildPolicy
		want     string
	}{
		"a Role grants permissions": {
			template: "{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: a}}",
			want:     at + ".kind: a Role grants permissions: it is allowed only if the platform runs with --allow-child-kinds=Role.rbac.authorization.k8s.io",
		},
		"a Role is created if it is allowed": {
			template: "{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: a}}", policy: everything,
		},
		"another kind of its group is not": {
			template: "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: a}}", policy: everything,
			want: at + ".kind: a ClusterRole grants permissions",
		},
		"a kind is restricted in any version": {
			template: "{apiVersion: admissionregistration.k8s.io/v9, kind: Whatever, metadata: {name: a}}",
			want:     "--allow-child-kinds=Whatever.admissionregistration.k8s.io",
		},
		"a kind of the core group is named without a group": {
			template: "{apiVersion: v1, kind: PersistentVolume, metadata: {name: a}}",
			want:     "--allow-child-kinds=PersistentVolume",
		},
		"a service account's token": {
			template: "{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: a}}",
			want:     at + ".type: a Secret of type kubernetes.io/service-account-token is a credential of the cluster: it is allowed only if",
		},
		"is created if it is allowed": {
			template: "{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: a}}", policy: everything,
		},
		"a bootstrap token": {
			template: "{apiVersion: v1, kind: Secret, type: bootstrap.kubernetes.io/token, metadata: {name: a}}", policy: everything,
			want: "--allow-child-kinds=Secret/bootstrap.kubernetes.io/token",
		},
		"any other Secret is created": {
			template: "{apiVersion: v1, kind: Secret, type: kubernetes.io/tls, metadata: {name: a}}",
		},
		"a Secret in another group is another kind": {
			template: "{apiVersion: example.com/v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: a}}",
		},
		"a Namespace with weaker Pod security": {
			template: "{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {pod-security.kubernetes.io/enforce: baseline}}}",
			want:     at + `.metadata.labels["pod-security.kubernetes.io/enforce"]: the value "baseline" can weaken Pod security: it is allowed only if`,
		},
		"with an old version of its rules": {
			template: "{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {pod-security.kubernetes.io/enforce-version: v1.0}}}",
			want:     at + `.metadata.labels["pod-security.kubernetes.io/enforce-version"]`,
		},
		"with the strictest is created": {
			template: "{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {pod-security.kubernetes.io/enforce: restricted, pod-security.kubernetes.io/enforce-version: latest}}}",
		},
		"with any is created if it is allowed": {
			template: "{apiVersion: v1, kind: Namespace, metadata: {name: kube-a, labels: {pod-security.kubernetes.io/enforce: privileged}}}", policy: everything,
		},
		"a Namespace with a finalizer": {
			template: "{apiVersion: v1, kind: Namespace, metadata: {name: a}, spec: {finalizers: [a/b]}}",
			want:     at + ".spec.finalizers: must not be set in a template",
		},
		"a Namespace of Kubernetes": {
			template: "{apiVersion: v1, kind: Namespace, metadata: {name: kube-a}}",
			want:     at + `.metadata.name: namespace "kube-a" is protected: it is allowed only if the platform runs with --allow-child-namespaces=kube-a`,
		},
		"finalizers": {
			template: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, finalizers: [a/b]}}",
			want:     at + ".metadata.finalizers: must not be set in a template",
		},
		"finalizers of an expression": {
			template: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, finalizers: '${self.spec.tags}'}}",
			want:     at + ".metadata.finalizers: must not be set in a template",
		},
		"an expression that makes all of metadata": {
			template: "{apiVersion: v1, kind: ConfigMap, metadata: \"${{'name': 'a', 'finalizers': ['a/b']}}\"}",
			want:     at + ".metadata: has to be an object with a name",
		},
		"an expression in a key": {
			template: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, \"${'finalizers'}\": [a/b]}}",
			want:     "a key cannot have expressions",
		},
		"the platform's own namespace": {
			template: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: platform}}", policy: blueprint.ChildPolicy{OwnNamespace: "platform"},
			want: at + `.metadata.namespace: namespace "platform" is protected: it is allowed only if the platform runs with --allow-child-namespaces=platform`,
		},
		"a namespace of Kubernetes": {
			template: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: kube-system}}",
			want:     at + `.metadata.namespace: namespace "kube-system" is protected`,
		},
		"protected namespaces that are allowed": {
			template: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: kube-system}}", policy: everything,
		},
		"any other namespace": {
			template: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: kubernetes}}",
		},
		"a computed namespace": {
			template: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${self.spec.name}"}}`,
			want:     at + ".metadata.namespace: ${self.spec.name}: a namespace can be computed only if spec.allowedNamespaces lists the allowed results",
		},
		"a namespace with an expression in it": {
			template: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "team-${self.spec.name}"}}`,
			want:     at + ".metadata.namespace: a namespace can be computed only if",
		},
		"the instance's own": {
			template: `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${ self.metadata.namespace }"}}`,
		},
	} {
		t.Run(reason, func(t *testing.T) {
			got := problemsOf(t, ofWebsites("\n    - {id: a, template: "+c.template+"}"), blueprint.Options{IsNamespaced: scopes, Children: c.policy})
			switch {
			case c.want == "" && got != nil:
				t.Errorf("refused: %q", got)
			case c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)):
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestCompile_allowedNamespaces(t *testing.T) {
	for reason, c := range map[string]struct {
		patterns []string
		want     string
	}{
		"names and patterns":    {[]string{"shop", "team-*", "*", "*-a-*"}, ""},
		"is no name":            {[]string{"shop", "Team"}, `spec.allowedNamespaces[1]: "Team": it must be the name of a namespace`},
		"is another pattern":    {[]string{"team-[ab]"}, `spec.allowedNamespaces[0]: "team-[ab]": it must be`},
		"is empty":              {[]string{""}, `spec.allowedNamespaces[0]: "": it must be`},
		"is too long":           {[]string{strings.Repeat("a", 64)}, `spec.allowedNamespaces[0]`},
		"is a protected one":    {[]string{"kube-system"}, `spec.allowedNamespaces[0]: namespace "kube-system" is protected`},
		"are more than allowed": {make([]string, 65), "spec.allowedNamespaces: has more than 64 entries"},
	} {
		t.Run(reason, func(t *testing.T) {
			got := problemsOf(t, allowingNamespaces(ofWebsites(" []"), c.patterns...), blueprint.Options{})
			if c.want == "" && got != nil || c.want != "" && (len(got) == 0 || !strings.Contains(got[0], c.want)) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestStep_childPolicy(t *testing.T) {
	const at = "spec.resources[0].template"
	policy := blueprint.ChildPolicy{OwnNamespace: "platform"}
	of := func(namespace, spec string) string {
		return "{apiVersion: shop.example.com/v1, kind: Website, metadata: {name: a, namespace: " + namespace + "}, spec: " + spec + "}"
	}
	for reason, c := range map[string]struct {
		template, self string
		policy         blueprint.ChildPolicy
		want           string // the namespace, or a problem
	}{
		"a namespace that matches": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${self.spec.name}"}}`, of("shop", "{name: team-a}"), policy, "team-a",
		},
		"another": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${self.spec.name}"}}`, of("shop", "{name: default}"), policy,
			at + `.metadata.namespace: namespace "default" does not match spec.allowedNamespaces`,
		},
		"one that only begins like the pattern": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${self.spec.name}"}}`, of("shop", "{name: team-a/../kube-system}"), policy,
			at + `.metadata.namespace: "team-a/../kube-system" cannot be the name of a namespace`,
		},
		"the instance's own": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${self.spec.name}"}}`, of("shop", "{name: shop}"), policy, "shop",
		},
		"none, which is the instance's own": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${dyn(self.spec.?name)}"}}`, of("shop", "{}"), policy, "shop",
		},
		"a protected one that matches": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${self.spec.name}"}}`, of("shop", "{name: kube-system}"), policy,
			at + `.metadata.namespace: namespace "kube-system" is protected`,
		},
		"a protected one that is allowed": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${self.spec.name}"}}`, of("shop", "{name: kube-system}"),
			blueprint.ChildPolicy{Namespaces: []string{"kube-s*"}}, "kube-system",
		},
		"an instance in a protected one": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}`, of("platform", "{}"), policy,
			at + `.metadata.namespace: namespace "platform" is protected`,
		},
		"whose children are elsewhere": {
			`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: team-a}}`, of("platform", "{}"), policy, "team-a",
		},
		"or in no namespace": {
			`{apiVersion: v1, kind: Namespace, metadata: {name: a}}`, of("platform", "{}"), policy, "",
		},
		"a Secret's type": {
			`{apiVersion: v1, kind: Secret, type: "${self.spec.name}", metadata: {name: a}}`, of("shop", "{name: kubernetes.io/service-account-token}"), policy,
			at + ".type: a Secret of type kubernetes.io/service-account-token is a credential",
		},
		"a Namespace's name": {
			`{apiVersion: v1, kind: Namespace, metadata: {name: "${self.spec.name}"}}`, of("shop", "{name: platform}"), policy,
			at + `.metadata.name: namespace "platform" is protected`,
		},
		"a Namespace's labels": {
			`{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: "${self.spec.labels}"}}`, of("shop", "{labels: {pod-security.kubernetes.io/enforce: privileged}}"), policy,
			at + `.metadata.labels["pod-security.kubernetes.io/enforce"]: the value "privileged" can weaken`,
		},
		"a Namespace's finalizers": {
			`{apiVersion: v1, kind: Namespace, metadata: {name: a}, spec: "${{'finalizers': self.spec.tags}}"}`, of("shop", "{tags: [a/b]}"), policy,
			at + ".spec.finalizers: must not be set in a template",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			text := allowingNamespaces(ofWebsites("\n    - {id: a, template: "+c.template+"}"), "team-*", "kube-*")
			s := step(t, compile(t, text, blueprint.Options{IsNamespaced: scopes, Children: c.policy}), c.self, nil)
			got := s.Problems.Error()
			if len(s.Rendered) > 0 {
				got = s.Rendered[0].Object.GetNamespace()
			}
			if got != c.want && (c.want == "" || !strings.HasPrefix(got, c.want)) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestCheckRestrictedKind(t *testing.T) {
	for entry, valid := range map[string]bool{
		"Role.rbac.authorization.k8s.io":                 true,
		"APIService.apiregistration.k8s.io":              true,
		"Blueprint.platform.example.com":                 true,
		"PersistentVolume":                               true,
		"Secret/kubernetes.io/service-account-token":     true,
		"Secret/bootstrap.kubernetes.io/token":           true,
		"Namespace/pod-security.kubernetes.io":           true,
		"ConfigMap":                                      false,
		"Secret":                                         false,
		"Secret/kubernetes.io/tls":                       false,
		"Namespace":                                      false,
		"Deployment.apps":                                false,
		"rbac.authorization.k8s.io":                      false,
		".rbac.authorization.k8s.io":                     false,
		"roles.rbac.authorization.k8s.io":                false,
		"*.rbac.authorization.k8s.io":                    false,
		"rbac.authorization.k8s.io/v1, Kind=ClusterRole": false,
		"": false,
	} {
		if err := blueprint.CheckRestrictedKind(entry); (err == nil) != valid {
			t.Errorf("%q: %v", entry, err)
		}
	}
}
