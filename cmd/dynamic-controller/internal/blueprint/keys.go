package blueprint

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/common"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint/expression"
)

// checkKeys rejects expressions that read a key of a map if the template of the child sets the map without this key.
// Such an expression could wait forever. If another writer adds the key, the expression must use has() or ? to read it.
// Secrets are not checked because the API server moves the values of stringData into data. References are not checked
// because they have no template.
func checkKeys(
	resources []*resource, schemas map[schema.GroupVersionKind]common.Schema, all []*found, c *collector,
) {
	roots := map[string]*fieldSchema{}
	byID := map[string]*resource{}
	for _, r := range resources {
		if s := schemas[r.GVK]; s != nil && !r.Reference && r.GVK.GroupKind() != secretKind {
			byID[r.ID], roots[r.ID] = r, newFieldSchema(s)
		}
	}
	for _, f := range all {
		if f.compiled.Program == nil {
			continue
		}
		for _, p := range f.compiled.Paths() {
			if r := byID[p[0].(string)]; r != nil {
				if key, keys := absentKey(r.body, roots[r.ID], p[1:]); key != "" {
					c.add(f.path, f.text, "%s does not exist: the template of %s sets this map without the key %q%s; "+
						"if another writer adds the key, test it with has() or read it with ?", p, r.ID, Cut(key, maxQuoted),
						suggest(key, keys))
				}
			}
		}
	}
}

// absentKey returns the first key of the path that is missing from a map in the template, and the keys that the map
// has. The key is empty if the path exists, or if the keys of the map are unknown.
func absentKey(n node, s *fieldSchema, path expression.Path) (key string, keys []string) {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			if typeOf(n) != "object" {
				return "", nil
			}
			next, has := field(n, step)
			switch known := s.field(step); {
			case known != nil:
				s = known
			case s.isMap() && !has:
				keys, _ = fieldsOf(n)
				return step, keys
			case s.isMap():
				s = s.value()
			default:
				return "", nil
			}
			if !has {
				return "", nil
			}
			n = next
		case int64:
			count, item := itemsOf(n)
			if step < 0 || step >= int64(count) {
				return "", nil
			}
			n, s = item(int(step)), s.item()
		}
	}
	return "", nil
}
