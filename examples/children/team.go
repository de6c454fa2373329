package main

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

// team is what is read of a Team.
type team struct {
	Spec struct {
		Motto   string   `json:"motto"`
		Members []string `json:"members"`
	} `json:"spec"`
}

// children is what a team wants, and nothing of how it comes about: what is no longer here is deleted. First the motto,
// and when that is there the members. Namespace and owner are added to them.
func (t *team) children(name string) [][]*unstructured.Unstructured {
	motto := child("ConfigMap", name)
	motto.Object["data"] = map[string]any{"motto": t.Spec.Motto}
	var members []*unstructured.Unstructured
	for _, member := range t.Spec.Members {
		members = append(members, child("ServiceAccount", name+"-"+member))
	}
	return [][]*unstructured.Unstructured{{motto}, members}
}

func child(kind, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetAPIVersion("v1")
	object.SetKind(kind)
	object.SetName(name)
	return object
}
