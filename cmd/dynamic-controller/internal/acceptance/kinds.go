package acceptance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/instances"
)

// kindOf returns the kind of a resource's template or reference. The kind is empty if the resource does not set it.
func kindOf(r blueprint.Resource) schema.GroupVersionKind {
	if ref := r.ExternalRef; ref != nil {
		return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	}
	return (&unstructured.Unstructured{Object: r.Template}).GroupVersionKind()
}

// setsNamespace reports whether a template sets metadata.namespace.
func setsNamespace(r blueprint.Resource) bool {
	metadata, _ := r.Template["metadata"].(map[string]any)
	_, has := metadata["namespace"]
	return has
}

// kindsOfInterest returns the kinds that affect whether a Blueprint can be served. These are the kinds in its newest
// generation and in its stored revisions.
func kindsOfInterest(b *blueprint.Blueprint, stored history) (kinds []schema.GroupKind) {
	add := func(kind schema.GroupKind) {
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	for _, r := range b.Spec.Resources {
		add(kindOf(r).GroupKind())
	}
	for _, r := range stored {
		for _, kind := range r.kinds {
			if r.blueprintUID == b.UID {
				add(kind.GroupKind())
			}
		}
	}
	return kinds
}

// kindFinder looks up kinds.
type kindFinder struct {
	mapper meta.RESTMapper
	// verbs returns the verbs that the API server supports for a resource.
	verbs func(schema.GroupVersionResource) ([]string, error)
}

// find returns the mapping for a kind, or nil if the kind is unknown.
func (f kindFinder) find(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	mapping, err := f.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	switch {
	case meta.IsNoMatchError(err) || err == nil && f.isGuess(gvk, mapping):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find the resource for %s: %w", gvk, err)
	}
	return mapping, nil
}

// isGuess reports whether the mapper guessed the mapping of a kind that does not exist. For each kind, the mapper also
// maps the lower-case name and the list kind, as client-go's mapper does. The API server does not accept objects of
// these guessed kinds.
func (f kindFinder) isGuess(gvk schema.GroupVersionKind, mapping *meta.RESTMapping) bool {
	if gvk.Kind == "List" {
		return true
	}
	guess, _ := meta.UnsafeGuessKindToResource(gvk)
	if item, isList := strings.CutSuffix(gvk.Kind, "List"); isList && mapping.Resource == guess {
		if _, err := f.mapper.RESTMapping(schema.GroupKind{Group: gvk.Group, Kind: item}, gvk.Version); err == nil {
			return true
		}
	}
	kinds, err := f.mapper.KindsFor(mapping.Resource) // does not return the lower-case name
	return err == nil && len(kinds) > 0 && !slices.Contains(kinds, gvk)
}

// suggest returns up to three existing kinds whose names match that of gvk, ignoring case.
func (f kindFinder) suggest(gvk schema.GroupVersionKind) string {
	kinds, err := f.mapper.KindsFor(schema.GroupVersionResource{Resource: strings.ToLower(gvk.Kind)})
	if err != nil {
		return ""
	}
	var all []string
	for _, k := range kinds {
		if strings.EqualFold(k.Kind, gvk.Kind) && k != gvk {
			all = append(all, fmt.Sprintf("%s in %s", k.Kind, k.GroupVersion()))
		}
	}
	return strings.Join(all[:min(len(all), 3)], ", or ")
}

// isNamespaced reports whether a kind is known to be namespaced.
func (f kindFinder) isNamespaced(gvk schema.GroupVersionKind) bool {
	mapping, err := f.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	return err == nil && mapping.Scope.Name() == meta.RESTScopeNameNamespace
}

// unknownKinds rejects resources whose kind is unknown. It also rejects resources that use different versions of a
// kind, because only one version of a kind can be watched.
func unknownKinds(b *blueprint.Blueprint, in inputs) (problems blueprint.Problems) {
	first := map[schema.GroupKind]int{}
	for i, r := range b.Spec.Resources {
		gvk := kindOf(r)
		if gvk.Kind == "" || gvk.Version == "" {
			continue // rejected by blueprint.Compile
		}
		path := fmt.Sprintf("spec.resources[%d].template", i)
		if r.ExternalRef != nil {
			path = fmt.Sprintf("spec.resources[%d].externalRef", i)
		}
		if in.mappings[gvk] == nil && !in.allowUnknownKinds {
			reason := fmt.Sprintf("unknown kind %s in %s", gvk.Kind, gvk.GroupVersion())
			switch suggestion := in.suggestions[gvk]; {
			case suggestion != "":
				reason += fmt.Sprintf("; did you mean %s?", suggestion)
			case in.undiscovered[gvk]:
				reason += "; the discovery of its group fails, the Blueprint will be checked again once it succeeds"
			default:
				reason += "; " + cmp.Or(in.unknownKindAdvice, "the Blueprint will be checked again once the kind exists")
			}
			problems = append(problems, blueprint.Problem{Path: path, Reason: reason})
		}
		other, has := first[gvk.GroupKind()]
		if !has {
			first[gvk.GroupKind()] = i
		} else if version := kindOf(b.Spec.Resources[other]).Version; version != gvk.Version {
			problems = append(problems, blueprint.Problem{Path: path + ".apiVersion", Reason: fmt.Sprintf(
				"version %s differs from version %s of the same kind in spec.resources[%d]; use one version",
				gvk.Version, version, other)})
		}
	}
	return problems
}

// childrenOf returns the kinds of the children, without duplicates.
func childrenOf(b *blueprint.Blueprint, compiled *blueprint.Compiled, in inputs) (all []instances.Child) {
	byID := map[string]blueprint.Resource{}
	for _, r := range b.Spec.Resources {
		byID[r.ID] = r
	}
	crd := compiled.Definition()
	namespaced := crd == nil || crd.Spec.Scope != apiextensionsv1.ClusterScoped
	for _, t := range compiled.Templates() {
		if t.Reference {
			continue
		}
		i := slices.IndexFunc(all, func(c instances.Child) bool { return c.GVK == t.GVK })
		if i < 0 {
			i = len(all)
			all = append(all, instances.Child{
				GVK: t.GVK, GVR: in.mappings[t.GVK].Resource, Path: t.Path, HasCRD: in.childCRDs[t.GVK] != nil,
			})
		}
		crossNamespace := namespaced && (setsNamespace(byID[t.ID]) || !t.Namespaced)
		all[i].CrossNamespace = all[i].CrossNamespace || crossNamespace
	}
	return all
}

// referencesOf returns the kinds of the referenced objects, without duplicates.
func referencesOf(compiled *blueprint.Compiled, in inputs) (all []instances.Child) {
	for _, t := range compiled.Templates() {
		if t.Reference && !slices.ContainsFunc(all, func(c instances.Child) bool { return c.GVK == t.GVK }) {
			all = append(all, instances.Child{GVK: t.GVK, GVR: in.mappings[t.GVK].Resource, Path: t.Path})
		}
	}
	return all
}
