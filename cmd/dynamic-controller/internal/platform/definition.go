package platform

import (
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// definition is what is kept of a CustomResourceDefinition: all but the schemas, which are most of what it weighs.
type definition struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	group       string
	resource    string
	established bool
	versions    []definedVersion
}

// definedVersion is a version of a definition.
type definedVersion struct {
	name            string
	served, storage bool
	status          statusRules
}

var (
	_ runtime.Object = (*definition)(nil)
	_ metav1.Object  = (*definition)(nil)
)

// DeepCopyObject implements [runtime.Object].
func (d *definition) DeepCopyObject() runtime.Object {
	c := *d
	c.ObjectMeta = *d.ObjectMeta.DeepCopy()
	c.versions = slices.Clone(d.versions)
	return &c
}

// slim is a cache's transform: it makes a definition of a CustomResourceDefinition.
func slim(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, crd); err != nil {
		return nil, fmt.Errorf("read the CustomResourceDefinition %s: %w", u.GetName(), err)
	}
	return definitionOf(crd), nil
}

func definitionOf(crd *apiextensionsv1.CustomResourceDefinition) *definition {
	d := &definition{TypeMeta: crd.TypeMeta, ObjectMeta: crd.ObjectMeta, group: crd.Spec.Group, resource: crd.Spec.Names.Plural}
	d.ManagedFields = nil
	delete(d.Annotations, "kubectl.kubernetes.io/last-applied-configuration") // which has the schemas again
	for _, condition := range crd.Status.Conditions {
		if condition.Type == apiextensionsv1.Established {
			d.established = condition.Status == apiextensionsv1.ConditionTrue
		}
	}
	for _, v := range crd.Spec.Versions {
		d.versions = append(d.versions, definedVersion{name: v.Name, served: v.Served, storage: v.Storage, status: statusRulesOf(v)})
	}
	return d
}

// chosen is the version to serve: the one that is stored if it is served, so that nothing is converted, else the newest
// that is served.
func (d *definition) chosen() (v definedVersion, found bool) {
	for _, candidate := range d.versions {
		switch {
		case !candidate.served:
		case candidate.storage:
			return candidate, true
		case !found || version.CompareKubeAwareVersionStrings(candidate.name, v.name) > 0:
			v, found = candidate, true
		}
	}
	return v, found
}

func (d *definition) gvr(v definedVersion) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: d.group, Version: v.name, Resource: d.resource}
}
