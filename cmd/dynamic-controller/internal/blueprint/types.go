package blueprint

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// What Blueprints are to Kubernetes.
var (
	GroupVersion         = schema.GroupVersion{Group: "platform.example.com", Version: "v1alpha1"}
	GroupVersionKind     = GroupVersion.WithKind("Blueprint")
	GroupVersionResource = GroupVersion.WithResource("blueprints")
)

// Blueprint defines a type and what its instances become. It is cluster-scoped.
type Blueprint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   Spec   `json:"spec"`
	Status Status `json:"status,omitempty"`
}

// Spec is what a user writes.
type Spec struct {
	Type      Type       `json:"type"`
	Resources []Resource `json:"resources"`
	// DeletionPolicy is what happens to the instances and to a CustomResourceDefinition that was made of the Blueprint,
	// when that is deleted. Defaults to Retain.
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// RevisionHistoryLimit is the number of accepted specs to keep in addition to the served one. Defaults to 10.
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// AllowedNamespaces lists the allowed results of expressions in metadata.namespace of templates, as names or
	// patterns in which * matches any characters. The instance's own namespace is always allowed. Without the list, no
	// template can compute another namespace.
	AllowedNamespaces []string `json:"allowedNamespaces,omitempty"`
}

// DeletionPolicy is Retain or Delete.
type DeletionPolicy string

// The deletion policies.
const (
	Retain DeletionPolicy = "Retain"
	Delete DeletionPolicy = "Delete"
)

// Type is the type that a Blueprint defines, or by CRD the name of one that is or will be there: one of them.
type Type struct {
	CRD string `json:"crd,omitempty"`

	Group   string `json:"group,omitempty"`
	Version string `json:"version,omitempty"`
	Kind    string `json:"kind,omitempty"`
	// Plural defaults to what English makes of the kind, Singular to the kind in lower case.
	Plural     string   `json:"plural,omitempty"`
	Singular   string   `json:"singular,omitempty"`
	ShortNames []string `json:"shortNames,omitempty"`
	// Scope is Namespaced or Cluster. Defaults to Namespaced.
	Scope          apiextensionsv1.ResourceScope                    `json:"scope,omitempty"`
	PrinterColumns []apiextensionsv1.CustomResourceColumnDefinition `json:"printerColumns,omitempty"`
	// Schema is the OpenAPI v3 schema of an instance, of which it describes spec, and may describe fields of status.
	Schema map[string]any `json:"schema,omitempty"`
}

// Resource is one of the objects that an instance becomes.
type Resource struct {
	// ID is what other resources call it: an identifier.
	ID          string         `json:"id"`
	Template    map[string]any `json:"template"`
	IncludeWhen []string       `json:"includeWhen,omitempty"`
	ReadyWhen   []string       `json:"readyWhen,omitempty"`
}

// Status is what the platform says.
type Status struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
	Instances          *Instances         `json:"instances,omitempty"`
	// Served is the generation that is served. It is informational: the platform never reads it.
	Served *Served `json:"served,omitempty"`
}

// Served names a generation that was accepted, and the ControllerRevision in which its spec is stored.
type Served struct {
	Generation int64  `json:"generation"`
	Revision   string `json:"revision"`
}

// Instances counts the objects of a Blueprint's type.
type Instances struct {
	Total   int64 `json:"total"`
	Ready   int64 `json:"ready"`
	Failing int64 `json:"failing"`
}

// The conditions of a Blueprint.
const (
	// Accepted is whether the newest spec was compiled. What was accepted before is served until the next one is.
	Accepted = "Accepted"
	// TypeEstablished is whether its type is there.
	TypeEstablished = "TypeEstablished"
	// Serving is whether its instances are reconciled.
	Serving = "Serving"
)

// FromUnstructured reads a Blueprint as a client or a cache has it. The Blueprint shares templates and schema with it.
func FromUnstructured(object *unstructured.Unstructured) (*Blueprint, error) {
	var b Blueprint
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &b); err != nil {
		return nil, fmt.Errorf("read Blueprint %s: %w", object.GetName(), err)
	}
	return &b, nil
}
