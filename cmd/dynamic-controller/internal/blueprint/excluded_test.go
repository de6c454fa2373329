package blueprint_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

func TestStep_excludedObjects(t *testing.T) {
	// In no namespace are the kinds whose names begin with "Cluster".
	known := func(gvk schema.GroupVersionKind) (bool, bool) { return !strings.HasPrefix(gvk.Kind, "Cluster"), true }
	for reason, c := range map[string]struct{ resources, want string }{
		"a fixed name": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: fixed}}}`,
			"a=ConfigMap shop/fixed"},
		"a name of the instance": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${self.metadata.name}-a"}}}`,
			"a=ConfigMap shop/flowers-a"},
		"a namespace of its own": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: a, namespace: "${self.spec.tags[0]}-far"}}}`,
			"a=ConfigMap a-far/a"},
		"a cluster-scoped kind": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ClusterThing, metadata: {name: a}}}`,
			"a=ClusterThing /a"},
		"a name that another resource determines": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${b.metadata.name}-a"}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}}`,
			"a=ConfigMap /"},
		"a name that cannot be evaluated": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${self.spec.tags[7]}"}}}`,
			"a=ConfigMap /"},
		"a dependent": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: {a: "${a.metadata.name}"}}}`,
			"a=ConfigMap shop/a b=ConfigMap shop/b"},
		"one that is rendered as another": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}`,
			"a=ConfigMap /"},
		"one that another will be": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {c: "${c.metadata.uid}"}}}
    - {id: c, template: {apiVersion: v1, kind: Secret, metadata: {name: a}}}`,
			"a=ConfigMap /"},
		"an includeWhen that fails": {`
    - {id: a, includeWhen: ["self.spec.tags[7] == 'x'"],
        template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: {a: "${a.metadata.name}"}}}`,
			""},
	} {
		t.Run(reason, func(t *testing.T) {
			s := step(t, compile(t, ofWebsites(c.resources+"\n  allowedNamespaces: [\"*-far\"]"),
				blueprint.Options{IsNamespaced: known}), flowers, nil)
			var got []string
			for _, e := range s.Excluded {
				got = append(got, fmt.Sprintf("%s=%s %s/%s", e.ID, e.GVK.Kind, e.Namespace, e.Name))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("excluded %q, want %q", got, c.want)
			}
		})
	}
}

// A tenant who makes the expressions of an instance too costly keeps no resource that is excluded.
func TestStep_excludesWhateverOtherExpressionsCost(t *testing.T) {
	resources := ""
	for i := range 99 {
		resources += fmt.Sprintf(`
    - {id: r%d, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: r%d},
        data: {a: "${string(self.spec.tags[0].contains('%s'))}"}}}`,
			i, i, strings.Repeat("b", 100))
	}
	resources += `
    - {id: last, includeWhen: [self.spec.size > 2], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: last}}}`
	self := strings.Replace(flowers, "tags: [a, b]", "tags: ["+strings.Repeat("a", 200_000)+"]", 1)
	s := step(t, compile(t, ofWebsites(resources), blueprint.Options{}), self, nil)
	if len(s.Problems) == 0 || !strings.Contains(s.Problems.Error(), "cost more than") {
		t.Fatalf("the expressions do not cost enough: %d, %v", s.Cost, s.Problems)
	}
	if len(s.Excluded) != 1 || s.Excluded[0].Name != "last" {
		t.Errorf("excluded %+v", s.Excluded)
	}
}
