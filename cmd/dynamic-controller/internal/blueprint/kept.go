package blueprint

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/internal/keptfields"
)

// keptBy returns the fields that the children of a resource keep, including those with generated values.
func keptBy(r Resource) []KeptField {
	kept := slices.Clone(r.KeepExisting)
	for _, generated := range r.Generate {
		kept = append(kept, KeptField{Path: fmt.Sprintf("data[%q]", generated.Key), Reason: "generated"})
	}
	return kept
}

// checkKept reports fields that the children of a resource cannot keep, and keys that cannot be generated.
func (r *resource) checkKept(spec Resource, at string, problems *collector) {
	if len(r.KeepExisting) == 0 {
		return
	}
	if r.Reference {
		problems.add(at, "",
			"keepExisting and generate must not be set with externalRef, because existing objects are only read")
		return
	}
	if r.OnImmutable == Recreate {
		problems.add(at+".onImmutable", "", "must not be Recreate with keepExisting or generate, because a new object would "+
			"not have the values")
	}
	paths := map[string]bool{}
	for i, kept := range spec.KeepExisting {
		path := fmt.Sprintf("%s.keepExisting[%d].path", at, i)
		if _, err := keptfields.Parse(r.GVK.GroupKind(), kept.Path); err != nil {
			problems.add(path, "", "%v", err)
		}
		if paths[kept.Path] {
			problems.add(path, "", "%q is listed twice", Cut(kept.Path, maxQuoted))
		}
		paths[kept.Path] = true
	}
	r.checkGenerated(spec, at, problems)
}

// checkGenerated reports keys that cannot be generated.
func (r *resource) checkGenerated(spec Resource, at string, problems *collector) {
	if len(spec.Generate) > 0 && r.GVK.GroupKind() != (schema.GroupKind{Kind: "Secret"}) {
		problems.add(at+".generate", "",
			"must only be set for a Secret, because other objects must not contain secret values")
		return
	}
	keys := map[string]bool{}
	for i, generated := range spec.Generate {
		path := fmt.Sprintf("%s.generate[%d].key", at, i)
		for _, field := range []string{"data", "stringData"} {
			if _, has, _ := unstructured.NestedFieldNoCopy(spec.Template, field, generated.Key); has {
				problems.add(path, "", "%q is also in %s of the template; remove it there", Cut(generated.Key, maxQuoted), field)
			}
			value, has := spec.Template[field]
			if _, isMap := value.(map[string]any); has && !isMap {
				problems.add(path, "", "%s of the template must be a map, and not an expression, so that it cannot contain %q",
					field, Cut(generated.Key, maxQuoted))
			}
		}
		if keys[generated.Key] {
			problems.add(path, "", "%q is generated twice", Cut(generated.Key, maxQuoted))
		}
		keys[generated.Key] = true
	}
}
