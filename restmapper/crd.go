package restmapper

import (
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// customResourceDefinition contains the fields of a CRD that the mapper needs. The mapper decodes CRDs into this type
// instead of the full one, because schemas make up most of the size of a CRD.
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

// reduceCRD removes the fields of a CRD that the mapper does not need. The result does not depend on whether the CRD
// was received in a list or in a watch.
func reduceCRD(object any) (any, error) {
	c, ok := object.(*customResourceDefinition)
	if !ok {
		return nil, unexpectedType(object)
	}
	c.TypeMeta, c.ObjectMeta = metav1.TypeMeta{}, reduceMeta(c.ObjectMeta, "")
	return c, nil
}

// established reports whether the API server serves the CRD's type. A CRD that is being deleted is served until its
// objects have been finalized.
func (c *customResourceDefinition) established() bool {
	return slices.ContainsFunc(c.Status.Conditions, func(c crdCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	})
}

// crdVerbs are the verbs that the API server supports for every type of a CRD.
var crdVerbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}

// crd returns the CRD in the form in which the catalog stores it.
func (c *customResourceDefinition) crd() *crd {
	names := c.Status.AcceptedNames
	out := &crd{
		name: c.Name, group: c.Spec.Group, established: c.established(),
		resource: &resource{
			name: names.Plural, singular: names.Singular, kind: names.Kind,
			namespaced: c.Spec.Scope == apiextensionsv1.NamespaceScoped,
			shortNames: names.ShortNames, categories: names.Categories, verbs: crdVerbs,
		},
	}
	for _, v := range c.Spec.Versions {
		if v.Served {
			out.versions = append(out.versions, v.Name)
		}
	}
	return out
}
