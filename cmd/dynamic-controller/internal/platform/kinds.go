package platform

import (
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// kindOf reads what kind a template makes. A template that does not say is refused elsewhere.
func kindOf(r blueprint.Resource) schema.GroupVersionKind {
	apiVersion, _ := r.Template["apiVersion"].(string)
	kind, _ := r.Template["kind"].(string)
	return schema.FromAPIVersionAndKind(apiVersion, kind)
}

// kindsOfInterest returns the kinds that affect whether a Blueprint can be served: those of the newest generation and
// of the stored revisions.
func kindsOfInterest(b *blueprint.Blueprint, h history) []schema.GroupKind {
	kinds := groupKinds(b.Spec.Resources)
	for _, r := range h {
		for _, kind := range r.kinds {
			if gk := kind.GroupKind(); r.blueprintUID == b.UID && !slices.Contains(kinds, gk) {
				kinds = append(kinds, gk)
			}
		}
	}
	return kinds
}

func groupKinds(resources []blueprint.Resource) (kinds []schema.GroupKind) {
	for _, r := range resources {
		if gk := kindOf(r).GroupKind(); !slices.Contains(kinds, gk) {
			kinds = append(kinds, gk)
		}
	}
	return kinds
}

// isKind tells whether the mapping is that of a kind of objects. Like client-go's, the mapper knows two guesses beside each
// kind, its name in lower case and its list, and the API server takes objects of neither.
func (p *Platform) isKind(gvk schema.GroupVersionKind, mapping *meta.RESTMapping) bool {
	if gvk.Kind == "List" {
		return false
	}
	guess, _ := meta.UnsafeGuessKindToResource(gvk)
	if item, isList := strings.CutSuffix(gvk.Kind, "List"); isList && mapping.Resource == guess {
		if _, err := p.mapper.RESTMapping(schema.GroupKind{Group: gvk.Group, Kind: item}, gvk.Version); err == nil {
			return false
		}
	}
	kinds, err := p.mapper.KindsFor(mapping.Resource) // not the name in lower case
	return err != nil || len(kinds) == 0 || slices.Contains(kinds, gvk)
}

// kindsMeant are those of the same name in another group, version or case: APIs move, and kinds look like resources.
func (p *Platform) kindsMeant(gvk schema.GroupVersionKind) string {
	kinds, err := p.mapper.KindsFor(schema.GroupVersionResource{Resource: strings.ToLower(gvk.Kind)})
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

// unknownKinds rejects templates whose kind is unknown, and templates of one kind in two versions, because only one of the
// versions could be kept.
func unknownKinds(b *blueprint.Blueprint, kinds map[schema.GroupVersionKind]*meta.RESTMapping, meant map[schema.GroupVersionKind]string) (problems blueprint.Problems) {
	first := map[schema.GroupKind]int{}
	for i, r := range b.Spec.Resources {
		gvk := kindOf(r)
		if gvk.Kind == "" || gvk.Version == "" {
			continue
		}
		path := fmt.Sprintf("spec.resources[%d].template", i)
		if kinds[gvk] == nil {
			reason := fmt.Sprintf("there is no kind %s in %s; when there is, the Blueprint is looked at again", gvk.Kind, gvk.GroupVersion())
			if meant[gvk] != "" {
				reason = fmt.Sprintf("there is no kind %s in %s: did you mean %s?", gvk.Kind, gvk.GroupVersion(), meant[gvk])
			}
			problems = append(problems, blueprint.Problem{Path: path, Reason: reason})
		}
		other, has := first[gvk.GroupKind()]
		if !has {
			first[gvk.GroupKind()] = i
		} else if version := kindOf(b.Spec.Resources[other]).Version; version != gvk.Version {
			problems = append(problems, blueprint.Problem{Path: path + ".apiVersion",
				Reason: fmt.Sprintf("is %s, and in spec.resources[%d] the same kind is in version %s: choose one", gvk.Version, other, version)})
		}
	}
	return problems
}

// childKinds lists the types of what instances become, each once.
func childKinds(b *blueprint.Blueprint, compiled *blueprint.Compiled, f facts) (all []childKind) {
	byID := map[string]blueprint.Resource{}
	for _, r := range b.Spec.Resources {
		byID[r.ID] = r
	}
	namespaced := true
	if crd := compiled.Definition(); crd != nil {
		namespaced = crd.Spec.Scope != apiextensionsv1.ClusterScoped
	}
	for _, t := range compiled.Templates() {
		metadata, _ := byID[t.ID].Template["metadata"].(map[string]any)
		_, elsewhere := metadata["namespace"]
		foreign := namespaced && (elsewhere || !t.Namespaced)
		i := slices.IndexFunc(all, func(c childKind) bool { return c.gvk == t.GVK })
		if i < 0 {
			all = append(all, childKind{gvk: t.GVK, gvr: f.kinds[t.GVK].Resource, path: t.Path, defined: f.crds[t.GVK] != nil})
			i = len(all) - 1
		}
		all[i].foreign = all[i].foreign || foreign
	}
	return all
}
