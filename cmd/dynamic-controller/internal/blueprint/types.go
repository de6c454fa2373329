package blueprint

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The identifiers of Blueprints in the API.
var (
	GroupVersion         = schema.GroupVersion{Group: "platform.example.com", Version: "v1alpha1"}
	GroupVersionKind     = GroupVersion.WithKind("Blueprint")
	GroupVersionResource = GroupVersion.WithResource("blueprints")
)

// Blueprint defines a type, and the objects that are created for each of its instances. It is cluster-scoped.
type Blueprint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   Spec   `json:"spec"`
	Status Status `json:"status,omitempty"`
}

// Spec is written by the author of a Blueprint.
type Spec struct {
	Type      Type       `json:"type"`
	Resources []Resource `json:"resources"`
	// ServiceAccountName is the ServiceAccount that the platform impersonates to read and write the children of an
	// instance. It is in the instance's namespace, or in the platform's namespace if the type is cluster-scoped.
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// DeletionPolicy determines whether the instances, and the CustomResourceDefinition created for the Blueprint, are
	// deleted with the Blueprint. Defaults to Retain.
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// RevisionHistoryLimit is the number of accepted specs to keep in addition to the served one. Defaults to 10.
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// AllowedNamespaces lists the namespaces that an expression in metadata.namespace of a template can yield, as names or
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

// Type defines a type. Alternatively, CRD names a CustomResourceDefinition that exists or will exist.
type Type struct {
	CRD string `json:"crd,omitempty"`

	Group   string `json:"group,omitempty"`
	Version string `json:"version,omitempty"`
	Kind    string `json:"kind,omitempty"`
	// Plural defaults to the English plural of the kind, and Singular to the kind, both in lower case.
	Plural     string   `json:"plural,omitempty"`
	Singular   string   `json:"singular,omitempty"`
	ShortNames []string `json:"shortNames,omitempty"`
	// Scope is Namespaced or Cluster. Defaults to Namespaced.
	Scope          apiextensionsv1.ResourceScope                    `json:"scope,omitempty"`
	PrinterColumns []apiextensionsv1.CustomResourceColumnDefinition `json:"printerColumns,omitempty"`
	// Schema is the OpenAPI v3 schema of an instance. It describes spec, and optionally fields of status.
	Schema map[string]any `json:"schema,omitempty"`
}

// Resource describes one child of an instance.
type Resource struct {
	// ID is the name of the child in expressions of other resources.
	ID          string         `json:"id"`
	Template    map[string]any `json:"template"`
	IncludeWhen []string       `json:"includeWhen,omitempty"`
	ReadyWhen   []string       `json:"readyWhen,omitempty"`
	// DeletionPolicy determines whether the child is deleted when it is no longer part of the instance. Defaults to
	// Delete.
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// Adopt allows the instance to take over an existing object that has no controller.
	Adopt bool `json:"adopt,omitempty"`
}

// Status is written by the platform.
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
	// Accepted reports whether the newest spec is accepted. Until it is, the last accepted spec is served.
	Accepted = "Accepted"
	// TypeEstablished reports whether the API server serves the type.
	TypeEstablished = "TypeEstablished"
	// Serving reports whether instances are reconciled.
	Serving = "Serving"
	// Progressing reports whether the served spec is rolled out to the instances, or has been.
	Progressing = "Progressing"
)

// FromUnstructured converts an object to a Blueprint, which shares templates and schema with the object.
func FromUnstructured(object *unstructured.Unstructured) (*Blueprint, error) {
	var b Blueprint
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &b); err != nil {
		return nil, fmt.Errorf("read Blueprint %s: %w", object.GetName(), err)
	}
	return &b, nil
}
