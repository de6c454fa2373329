package blueprint_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

func TestStep_excludedObjects(t *testing.T) {
	// Kinds whose names begin with "Cluster" are cluster-scoped.
	known := func(gvk schema.GroupVersionKind) (bool, bool) { return !strings.HasPrefix(gvk.Kind, "Cluster"), true }
	for reason, c := range map[string]struct{ resources, want string }{
		"a fixed name": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: fixed}}}`,
			"a=ConfigMap [shop/fixed]"},
		"a name from the instance": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${self.metadata.name}-a"}}}`,
			"a=ConfigMap [shop/flowers-a]"},
		"a fixed namespace": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: a, namespace: "${self.spec.tags[0]}-far"}}}`,
			"a=ConfigMap [a-far/a]"},
		"a cluster-scoped kind": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ClusterThing, metadata: {name: a}}}`,
			"a=ClusterThing [/a]"},
		"a name that another resource determines": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${b.metadata.name}-a"}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}}`,
			"a=ConfigMap []"},
		"a name that cannot be evaluated": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap,
        metadata: {name: "${self.spec.tags[7]}"}}}`,
			"a=ConfigMap []"},
		"a dependent": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: {a: "${a.metadata.name}"}}}`,
			"a=ConfigMap [shop/a] b=ConfigMap [shop/b]"},
		"all objects of a collection": {`
    - {id: a, includeWhen: ["false"], forEach: [{tag: "${self.spec.tags}"}, {num: "${[1, 2]}"}],
        template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${tag}-${num}"}}}`,
			"a=ConfigMap [shop/a-1 shop/a-2 shop/b-1 shop/b-2]"},
		"objects of a collection whose list another resource determines": {`
    - {id: a, includeWhen: ["false"], forEach: [{num: "${[b.metadata.uid]}"}],
        template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${num}"}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}}`,
			"a=ConfigMap []"},
		"objects of a collection, except one shared with a waiting collection": {`
    - {id: a, includeWhen: ["false"], forEach: [{tag: "${self.spec.tags}"}],
        template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${tag}"}}}
    - {id: b, forEach: [{tag: "${['b', 'c']}"}],
        template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${tag}"}, data: {c: "${c.metadata.uid}"}}}
    - {id: c, template: {apiVersion: v1, kind: Secret, metadata: {name: a}}}`,
			"a=ConfigMap [shop/a]"},
		"objects of a collection that is too large": {`
    - {id: a, includeWhen: ["false"], forEach: [{num: "${lists.range(1001)}"}],
        template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "a${num}"}}}`,
			"a=ConfigMap []"},
		"an object that another resource renders": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}`,
			"a=ConfigMap []"},
		"an object that a waiting resource will render": {`
    - {id: a, includeWhen: ["false"], template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}}
    - {id: b, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {c: "${c.metadata.uid}"}}}
    - {id: c, template: {apiVersion: v1, kind: Secret, metadata: {name: a}}}`,
			"a=ConfigMap []"},
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
				got = append(got, fmt.Sprintf("%s=%s %s", e.ID, e.GVK.Kind, e.Names))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("excluded %q, want %q", got, c.want)
			}
		})
	}
}

// Resources are excluded even if the expressions of the instance are too costly. Otherwise, a tenant could prevent the
// deletion of excluded objects by making the expressions too costly.
func TestStep_excludesDespiteCostlyExpressions(t *testing.T) {
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
	if len(s.Problems) == 0 || !strings.Contains(s.Problems.Error(), "total cost of") {
		t.Fatalf("the expressions cost too little for this test: %d, %v", s.Cost, s.Problems)
	}
	if len(s.Excluded) != 1 || len(s.Excluded[0].Names) != 1 || s.Excluded[0].Names[0].Name != "last" {
		t.Errorf("excluded %+v", s.Excluded)
	}
}

// The names of excluded objects are evaluated after all conditions, and those of collections last. Their cost does not
// count towards the limit for other resources.
func TestStep_excludesDespiteCostlyNames(t *testing.T) {
	s := step(t, compile(t, ofWebsites(`
    - {id: many, includeWhen: ["false"], forEach: [{num: "${lists.range(1000)}"}],
        template: {apiVersion: v1, kind: ConfigMap, metadata: {name: "${lists.range(9000).map(i, i).size()}-${num}"}}}
    - {id: last, includeWhen: [self.spec.size > 2], template: {apiVersion: v1, kind: Secret, metadata: {name: last}}}
    - {id: page, template: {apiVersion: v1, kind: ConfigMap, metadata: {name: page}, data: {a: "${string(1 + 1)}"}}}`),
		blueprint.Options{}), flowers, nil)
	if s.Cost < blueprint.MaxInstanceCost {
		t.Fatalf("the names cost too little for this test: %d", s.Cost)
	}
	if len(s.Excluded) != 2 || len(s.Problems) > 0 || len(s.Excluded[1].Names) != 1 || len(s.Rendered) != 1 {
		t.Errorf("excluded %v, rendered %v, problems %v", s.Excluded, s.Rendered, s.Problems)
	}
}
