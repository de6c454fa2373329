package blueprint_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// allowingNamespaces sets spec.allowedNamespaces of a Blueprint.
func allowingNamespaces(text string, patterns ...string) string {
	return strings.Replace(text, "spec:\n", "spec:\n  allowedNamespaces: ['"+strings.Join(patterns, "', '")+"']\n", 1)
}

// scopes reports which kinds in these tests are namespaced.
func scopes(gvk schema.GroupVersionKind) (namespaced, known bool) {
	switch gvk.Kind {
	case "Namespace":
		return false, true
	}
	return true, true
}

func TestCompile_childMetadata(t *testing.T) {
	const at = "spec.resources[0].template.metadata"
	for reason, c := range map[string]struct{ metadata, want string }{
		"finalizers": {
			"{name: a, finalizers: [a/b]}", at + ".finalizers: must not be set in a template",
		},
		"an expression that yields finalizers": {
			"{name: a, finalizers: '${self.spec.tags}'}", at + ".finalizers: must not be set in a template",
		},
		"an expression that yields all of metadata": {
			"\"${{'name': 'a', 'finalizers': ['a/b']}}\"", at + ": must be a map with a name",
		},
		"an expression in a key": {
			"{name: a, \"${'finalizers'}\": [a/b]}", "keys must not contain expressions",
		},
		"a platform label": {
			"{name: a, labels: {platform.example.com/instance: a}}", at +
				".labels: keys under platform.example.com/ must not be set in a template",
		},
		"a platform annotation": {
			"{name: a, annotations: {platform.example.com/inventory: '${self.spec.name}'}}", at +
				".annotations: keys under platform.example.com/",
		},
		"a label with a similar prefix": {
			"{name: a, labels: {platform.example.com: a, platform.example.community/a: b}}", "",
		},
		"any other label":              {"{name: a, labels: {example.com/a: b}}", ""},
		"a namespace":                  {"{name: a, namespace: kube-system}", ""},
		"the instance's own namespace": {`{name: a, namespace: "${ self.metadata.namespace }"}`, ""},
		"a computed namespace": {
			`{name: a, namespace: "${self.spec.name}"}`,
			at + ".namespace: ${self.spec.name}: can be computed only if spec.allowedNamespaces lists the allowed namespaces",
		},
		"a namespace that contains an expression": {
			`{name: a, namespace: "team-${self.spec.name}"}`, at + ".namespace: can be computed only if",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			got := problemsOf(t,
				ofWebsites("\n    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: "+c.metadata+"}}"),
				blueprint.Options{IsNamespaced: scopes})
			switch {
			case c.want == "" && got != nil:
				t.Errorf("rejected: %q", got)
			case c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)):
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestStep_childMetadata(t *testing.T) {
	const at = "spec.resources[0].template.metadata"
	of := func(namespace, spec string) string {
		return "{apiVersion: shop.example.com/v1, kind: Website, metadata: {name: a, namespace: " + namespace + "}, spec: " +
			spec + "}"
	}
	const computed = `{name: a, namespace: "${self.spec.name}"}`
	for reason, c := range map[string]struct {
		metadata, self string
		want           string // the namespace, or a problem
	}{
		"a namespace that matches": {computed, of("shop", "{name: team-a}"), "team-a"},
		"a namespace that does not match": {
			computed, of("shop", "{name: default}"), at +
				`.namespace: namespace "default" does not match spec.allowedNamespaces`,
		},
		"a namespace that only has the prefix of the pattern": {
			computed, of("shop", "{name: team-a/../kube-system}"), at +
				`.namespace: "team-a/../kube-system" is not a valid namespace name`,
		},
		"the instance's own namespace": {computed, of("shop", "{name: shop}"), "shop"},
		"no namespace, which defaults to the instance's own": {
			`{name: a, namespace: "${dyn(self.spec.?name)}"}`, of("shop", "{}"), "shop",
		},
		"a namespace that the template names": {"{name: a, namespace: team-b}", of("shop", "{}"), "team-b"},
		"a computed platform label": {
			`{name: a, labels: "${self.spec.labels}"}`, of("shop", "{labels: {platform.example.com/instance: b}}"),
			at + ".labels: keys under platform.example.com/ must not be set in a template",
		},
		"a computed label": {`{name: a, labels: "${self.spec.labels}"}`, of("shop", "{labels: {example.com/a: b}}"), "shop"},
	} {
		t.Run(reason, func(t *testing.T) {
			template := "{apiVersion: v1, kind: ConfigMap, metadata: " + c.metadata + "}"
			text := allowingNamespaces(ofWebsites("\n    - {id: a, template: "+template+"}"), "team-*")
			s := step(t, compile(t, text, blueprint.Options{IsNamespaced: scopes}), c.self, nil)
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

func TestCompile_limitedNamespaces(t *testing.T) {
	const at = "spec.resources[0].template"
	within := []string{"shop", "team-a"}
	for reason, c := range map[string]struct{ kind, metadata, want string }{
		"the instance's namespace": {"ConfigMap", "{name: a}", ""},
		"a namespace in the list":  {"ConfigMap", "{name: a, namespace: team-a}", ""},
		"a computed namespace":     {"ConfigMap", `{name: a, namespace: "${self.spec.name}"}`, ""},
		"a namespace that is not in the list": {
			"ConfigMap", "{name: a, namespace: kube-system}",
			at + `.metadata.namespace: namespace "kube-system" is not listed in --namespaces`,
		},
		"a cluster-scoped kind": {
			"Namespace", "{name: a}", at + ".kind: Namespace is cluster-scoped, but --namespaces limits the platform",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			template := "{apiVersion: v1, kind: " + c.kind + ", metadata: " + c.metadata + "}"
			text := allowingNamespaces(ofWebsites("\n    - {id: a, template: "+template+"}"), "*")
			got := problemsOf(t, text, blueprint.Options{IsNamespaced: scopes, Namespaces: within})
			if c.want == "" && got != nil || c.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], c.want)) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if got := problemsOf(t, text, blueprint.Options{IsNamespaced: scopes}); got != nil {
				t.Errorf("without --namespaces: got %q", got)
			}
		})
	}
}

func TestCompile_limitedNamespacesRequireNamespacedType(t *testing.T) {
	clusterScoped := strings.Replace(ofWebsites(" []"), "kind: Website\n", "kind: Website\n    scope: Cluster\n", 1)
	named := blueprint.Options{CRD: compile(t, clusterScoped, blueprint.Options{}).Definition()}
	const want = "spec.type: must be namespaced, because --namespaces limits the platform to some namespaces"
	for text, options := range map[string]blueprint.Options{
		clusterScoped: {},
		"{metadata: {name: a}, spec: {type: {crd: websites.shop.example.com}, resources: []}}": named,
	} {
		options.Namespaces = []string{"shop"}
		if got := problemsOf(t, text, options); len(got) != 1 || got[0] != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestStep_limitedNamespaces(t *testing.T) {
	text := allowingNamespaces(ofWebsites(`
    - {id: a, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: "${self.spec.name}"}}}`), "*")
	compiled := compile(t, text, blueprint.Options{IsNamespaced: scopes, Namespaces: []string{"shop", "team-a"}})
	const website = "{apiVersion: shop.example.com/v1, kind: Website, metadata: {name: a, namespace: shop}, " +
		"spec: {name: %s}}"
	for namespace, want := range map[string]string{
		"shop": "", "team-a": "",
		"team-b": `spec.resources[0].template.metadata.namespace: namespace "team-b" is not listed in --namespaces`,
	} {
		s := step(t, compiled, fmt.Sprintf(website, namespace), nil)
		if got := s.Problems.Error(); want == "" != (len(s.Problems) == 0) || !strings.HasPrefix(got, want) {
			t.Errorf("namespace %s: got %q, want %q", namespace, got, want)
		}
	}
}
