package restmapper

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// customResourceDefinition contains the fields of a CRD that the mapper needs. The mapper decodes CRDs into this type
// instead of the full one, because schemas make up most of the size of a CRD.
type customResourceDefinition struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Group    string       `json:"group"`
		Scope    string       `json:"scope"`
		Versions []crdVersion `json:"versions"`
	} `json:"spec"`
	Status struct {
		AcceptedNames crdNames       `json:"acceptedNames"`
		Conditions    []crdCondition `json:"conditions"`
	} `json:"status"`
}

type crdVersion struct {
	Name   string `json:"name"`
	Served bool   `json:"served"`
}

type crdNames struct {
	Plural     string   `json:"plural"`
	Singular   string   `json:"singular"`
	ShortNames []string `json:"shortNames"`
	Kind       string   `json:"kind"`
	Categories []string `json:"categories"`
}

type crdCondition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

func (c *customResourceDefinition) DeepCopyObject() runtime.Object {
	out := *c
	out.ObjectMeta = *c.ObjectMeta.DeepCopy()
	out.Spec.Versions = slices.Clone(c.Spec.Versions)
	out.Status.AcceptedNames.ShortNames = slices.Clone(c.Status.AcceptedNames.ShortNames)
	out.Status.AcceptedNames.Categories = slices.Clone(c.Status.AcceptedNames.Categories)
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
		return c.Type == "Established" && c.Status == "True"
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
			namespaced: c.Spec.Scope == "Namespaced",
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
