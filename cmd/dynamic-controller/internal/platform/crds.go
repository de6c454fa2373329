package platform

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// slim is a cache's transform: it makes a typed CustomResourceDefinition, without what nobody here reads.
func slim(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, crd); err != nil {
		return nil, fmt.Errorf("read the CustomResourceDefinition %s: %w", u.GetName(), err)
	}
	crd.ManagedFields = nil
	delete(crd.Annotations, "kubectl.kubernetes.io/last-applied-configuration") // which has the schemas again
	return crd, nil
}

// crdOf returns the CustomResourceDefinition in the cache, or nil if there is none. It is shared.
func (p *Platform) crdOf(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	lister, err := p.engines.Definitions.SecondaryLister(blueprints, p.watchCRDs().Key())
	if err != nil {
		return nil, err
	}
	obj, err := lister.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return nil, fmt.Errorf("the CustomResourceDefinition %s cannot be read", name)
	}
	return crd, nil
}

// isMadeFor tells whether the platform made the definition for this Blueprint, or for one of its name. That one is gone, for
// this one has its name: deleted and its definition left behind, or lost, and this one restored from a backup.
func isMadeFor(crd *apiextensionsv1.CustomResourceDefinition, b *blueprint.Blueprint) bool {
	return crd.Annotations[madeByKey] == string(b.UID) || crd.Annotations[madeForKey] == b.Name
}

// isMade reports whether the platform created the definition, for any Blueprint.
func isMade(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Annotations[madeByKey] != "" || crd.Annotations[madeForKey] != ""
}

// notEstablished returns why a definition's type is not served. The reason is empty if the type is served.
func notEstablished(crd *apiextensionsv1.CustomResourceDefinition) (reason, message string) {
	switch {
	case crd.DeletionTimestamp != nil:
		return "Terminating", "it is being deleted"
	case apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established):
		return "", ""
	}
	if c := apihelpers.FindCRDCondition(crd, apiextensionsv1.NamesAccepted); c != nil && c.Status == apiextensionsv1.ConditionFalse {
		return "NamesNotAccepted", c.Message
	}
	return "Installing", "the API server has yet to establish it"
}

// gvrOf is the type whose objects are instances: in the version that is stored if that is served, else in the first that
// is. It is empty if none is.
func gvrOf(crd *apiextensionsv1.CustomResourceDefinition) schema.GroupVersionResource {
	version := blueprint.VersionOf(crd)
	if version == "" {
		return schema.GroupVersionResource{}
	}
	return schema.GroupVersionResource{Group: crd.Spec.Group, Version: version, Resource: crd.Spec.Names.Plural}
}
