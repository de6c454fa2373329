package acceptance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
	"github.com/dynamic-controller/engine/internal/requestpath"
)

// unsupported returns the childVerbs that the API server does not support for a kind. Referenced objects need a part of
// them.
func (f kindFinder) unsupported(mapping *meta.RESTMapping) (verbs []string, err error) {
	supported, err := f.verbs(mapping.Resource)
	if err != nil {
		return nil, fmt.Errorf("find the verbs of %s: %w", nameOf(mapping.Resource), err)
	}
	namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace
	misrouted := requestpath.Misrouted(mapping.Resource.GroupResource(), namespaced)
	for _, verb := range childVerbs {
		if !slices.Contains(supported, verb) || slices.Contains(misrouted, verb) {
			verbs = append(verbs, verb)
		}
	}
	return verbs, nil
}

// unsupportedKinds rejects resources whose objects the platform could not watch or, if they are children, could not
// create or delete. Instances with such children could never become ready, and their deletion could miss children.
func unsupportedKinds(b *blueprint.Blueprint, in inputs) (problems blueprint.Problems) {
	for i, r := range b.Spec.Resources {
		path, needed := fmt.Sprintf("spec.resources[%d].template", i), childVerbs
		if r.ExternalRef != nil {
			path, needed = fmt.Sprintf("spec.resources[%d].externalRef", i), referenceVerbs
		}
		gvk := kindOf(r)
		missing := slices.DeleteFunc(slices.Clone(in.unsupported[gvk]), func(verb string) bool {
			return !slices.Contains(needed, verb)
		})
		if in.mappings[gvk] != nil && len(missing) > 0 {
			problems = append(problems, blueprint.Problem{Path: path, Reason: fmt.Sprintf(
				"the API server does not support %s for %s in %s; use another kind",
				strings.Join(missing, ", "), gvk.Kind, gvk.GroupVersion())})
		}
	}
	return problems
}

// rejectMisrouted returns a rejection if requests for instances would not reach the type, and nil otherwise. crd is nil
// if the CustomResourceDefinition does not exist.
func rejectMisrouted(b *blueprint.Blueprint, crd *apiextensionsv1.CustomResourceDefinition) *rejection {
	path, scope := "spec.type", cmp.Or(b.Spec.Type.Scope, apiextensionsv1.NamespaceScoped)
	if b.Spec.Type.CRD != "" {
		if crd == nil {
			return nil
		}
		path, scope = "spec.type.crd", crd.Spec.Scope
	}
	resource := schema.ParseGroupResource(blueprint.DefinitionName(b))
	verbs := requestpath.Misrouted(resource, scope == apiextensionsv1.NamespaceScoped)
	if len(verbs) == 0 {
		return nil
	}
	return &rejection{reasonInvalid, fmt.Sprintf("%s: the API server does not support %s for %s, because %q has another "+
		"meaning in the paths of requests; use a type with another plural",
		path, strings.Join(verbs, ", "), resource, resource.Resource)}
}
