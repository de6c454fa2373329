package restmapper

import (
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// customResourceDefinition is decoded in place of the type it is named after, so that the schemas, which are nearly all
// that a CRD weighs, are never built.
type customResourceDefinition struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Group    string                        `json:"group"`
		Scope    apiextensionsv1.ResourceScope `json:"scope"`
		Versions []crdVersion                  `json:"versions"`
	} `json:"spec"`
	Status struct {
		AcceptedNames apiextensionsv1.CustomResourceDefinitionNames `json:"acceptedNames"`
		Conditions    []crdCondition                                `json:"conditions"`
	} `json:"status"`
}

type crdVersion struct {
	Name   string `json:"name"`
	Served bool   `json:"served"`
}

type crdCondition struct {
	Type   apiextensionsv1.CustomResourceDefinitionConditionType `json:"type"`
	Status apiextensionsv1.ConditionStatus                       `json:"status"`
}

func (c *customResourceDefinition) DeepCopyObject() runtime.Object {
	out := *c
	out.ObjectMeta = *c.ObjectMeta.DeepCopy()
	out.Spec.Versions = slices.Clone(c.Spec.Versions)
	out.Status.AcceptedNames = *c.Status.AcceptedNames.DeepCopy()
	out.Status.Conditions = slices.Clone(c.Status.Conditions)
	return &out
}

// established tells whether the API server serves the CRD's type. It does to the end: while a CRD waits for its objects'
// finalizers, discovery still has it.
func (c *customResourceDefinition) established() bool {
	return slices.ContainsFunc(c.Status.Conditions, func(c crdCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	})
}

// essence is what mapping needs of the CRD.
func (c *customResourceDefinition) essence() *crd {
	names := c.Status.AcceptedNames
	e := &crd{
		name: c.Name, group: c.Spec.Group, established: c.established(),
		resource: &resource{
			name: names.Plural, singular: names.Singular, kind: names.Kind,
			namespaced: c.Spec.Scope == apiextensionsv1.NamespaceScoped,
			shortNames: names.ShortNames, categories: names.Categories,
		},
	}
	for _, v := range c.Spec.Versions {
		if v.Served {
			e.versions = append(e.versions, v.Name)
		}
	}
	return e
}
