package main

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/handlers/children"
)

// team contains the fields of a Team that the program reads.
type team struct {
	Spec struct {
		Motto   string   `json:"motto"`
		Members []string `json:"members"`
	} `json:"spec"`
}

// children returns the desired children of a team in two stages: the motto, and then the members. Children that are no
// longer returned are deleted. The reconciler adds the namespace and the owner reference.
func (t *team) children(name string) [][]children.Child {
	motto := child("ConfigMap", name)
	motto.Object["data"] = map[string]any{"motto": t.Spec.Motto}
	var members []*unstructured.Unstructured
	for _, member := range t.Spec.Members {
		members = append(members, child("ServiceAccount", name+"-"+member))
	}
	return [][]children.Child{children.Stage(motto), children.Stage(members...)}
}

func child(kind, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetAPIVersion("v1")
	object.SetKind(kind)
	object.SetName(name)
	return object
}
