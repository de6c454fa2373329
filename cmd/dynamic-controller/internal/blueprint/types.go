package blueprint

import (
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Identifiers of Blueprints in the Kubernetes API.
var (
	GroupVersion         = schema.GroupVersion{Group: "platform.example.com", Version: "v1alpha1"}
	GroupVersionKind     = GroupVersion.WithKind("Blueprint")
	GroupVersionResource = GroupVersion.WithResource("blueprints")
)

// Blueprint defines a type and the objects to create for each of its instances. It is cluster-scoped.
type Blueprint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   Spec   `json:"spec"`
	Status Status `json:"status,omitempty"`
}

// Spec is the desired state, written by the author of the Blueprint.
type Spec struct {
	Type      Type       `json:"type"`
	Resources []Resource `json:"resources"`
	// ServiceAccountName is the ServiceAccount that the platform impersonates to read and write the children of an
	// instance. The ServiceAccount is in the namespace of the instance or, if the type is cluster-scoped, in the namespace
	// of the platform.
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// DeletionPolicy determines whether deleting the Blueprint also deletes the instances and the generated
	// CustomResourceDefinition. Defaults to Retain.
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// RevisionHistoryLimit is the number of accepted specs to keep in addition to the one being served. Defaults to 10.
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
	// AllowedNamespaces lists the namespaces that metadata.namespace of a template can evaluate to. Entries are names or
	// patterns, in which * matches any characters. The instance's own namespace is always allowed. If the list is empty,
	// templates cannot compute a different namespace.
	AllowedNamespaces []string `json:"allowedNamespaces,omitempty"`
}

// OnImmutable is either Recreate or Fail.
type OnImmutable string

// Recreate deletes a child that cannot be changed, and creates it again.
const Recreate OnImmutable = "Recreate"

// DeletionPolicy is either Retain or Delete.
type DeletionPolicy string

// Values of DeletionPolicy.
const (
	Retain DeletionPolicy = "Retain"
	Delete DeletionPolicy = "Delete"
)

// Type defines a type, or refers to an existing type if CRD is set. CRD is the name of a CustomResourceDefinition,
// which can be created after the Blueprint.
type Type struct {
	CRD string `json:"crd,omitempty"`

	Group   string `json:"group,omitempty"`
	Version string `json:"version,omitempty"`
	Kind    string `json:"kind,omitempty"`
	// Plural defaults to the English plural of the kind in lower case. Singular defaults to the kind in lower case.
	Plural     string   `json:"plural,omitempty"`
	Singular   string   `json:"singular,omitempty"`
	ShortNames []string `json:"shortNames,omitempty"`
	// Scope is Namespaced or Cluster. Defaults to Namespaced.
	Scope          apiextensionsv1.ResourceScope                    `json:"scope,omitempty"`
	PrinterColumns []apiextensionsv1.CustomResourceColumnDefinition `json:"printerColumns,omitempty"`
	// Schema is the OpenAPI v3 schema of an instance. It describes spec and, optionally, fields of status.
	Schema map[string]any `json:"schema,omitempty"`

	// Status defines fields of the instance's status. Like templates, they can contain expressions. Fields that the schema
	// does not declare are added to it.
	Status map[string]any `json:"status,omitempty"`
	// Conditions defines conditions of an instance, in addition to those of the platform.
	Conditions []Condition `json:"conditions,omitempty"`
}

// Condition computes a condition of an instance.
type Condition struct {
	Type string `json:"type"`
	// Status is an expression that yields a boolean.
	Status string `json:"status"`
	// Reason and Message are strings that can contain expressions. Both are optional.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Resource describes one child of an instance, or existing objects that other resources read. Exactly one of Template
// and ExternalRef is set.
type Resource struct {
	// ID is the name by which expressions of other resources refer to the child or to the existing objects.
	ID          string         `json:"id"`
	Template    map[string]any `json:"template,omitempty"`
	ExternalRef *ExternalRef   `json:"externalRef,omitempty"`
	// ForEach makes the resource a collection, with one child for each combination of the items of its lists. Each entry
	// has a single key: the name of a template variable. Its value is an expression that yields a list.
	ForEach     []map[string]string `json:"forEach,omitempty"`
	IncludeWhen []string            `json:"includeWhen,omitempty"`
	ReadyWhen   []string            `json:"readyWhen,omitempty"`
	// DeletionPolicy determines whether the child is deleted when its instance is deleted, or when the child is no longer
	// part of the instance. Defaults to Delete.
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// Adopt allows the instance to take over an existing object that has no controller.
	Adopt bool `json:"adopt,omitempty"`
	// OnImmutable determines whether a child that cannot be changed, because a field is immutable, is deleted and created
	// again. Defaults to Fail.
	OnImmutable OnImmutable `json:"onImmutable,omitempty"`
	// KeepExisting lists fields of the child that are set when they do not exist, and never changed or removed by the
	// platform once they exist.
	KeepExisting []KeptField `json:"keepExisting,omitempty"`
	// Generate lists keys of a Secret whose values are generated once, and then kept.
	Generate []Generated `json:"generate,omitempty"`
}

// KeptField is a field that others may set.
type KeptField struct {
	// Path is a path as in children.KeptField, such as spec.replicas.
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Generated is a key of a Secret with a generated value.
type Generated struct {
	Key string `json:"key"`
	// Format is Alphanumeric, which is the default, Hex or PrivateKey.
	Format GeneratedFormat `json:"format,omitempty"`
	// Length is the number of characters. Defaults to 32. It is not used for a PrivateKey.
	Length int `json:"length,omitempty"`
}

// GeneratedFormat is a format of generated values.
type GeneratedFormat string

// Values of GeneratedFormat. A PrivateKey is an ECDSA key with the curve P-256, in PKCS #8 and PEM.
const (
	Alphanumeric GeneratedFormat = "Alphanumeric"
	Hex          GeneratedFormat = "Hex"
	PrivateKey   GeneratedFormat = "PrivateKey"
)

// Status is the observed state, written by the platform.
type Status struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
	Instances          *Instances         `json:"instances,omitempty"`
	// Served identifies the spec that is served. It is informational: the platform never reads it.
	Served *Served `json:"served,omitempty"`
}

// Served identifies an accepted generation and the ControllerRevision that stores its spec.
type Served struct {
	Generation int64  `json:"generation"`
	Revision   string `json:"revision"`
}

// Instances counts the objects of the Blueprint's type.
type Instances struct {
	Total   int64 `json:"total"`
	Ready   int64 `json:"ready"`
	Failing int64 `json:"failing"`
}

// Condition types of a Blueprint.
const (
	// Accepted reports whether the newest spec is accepted. If it is not, the platform serves the last accepted spec.
	Accepted = "Accepted"
	// TypeEstablished reports whether the API server serves the type.
	TypeEstablished = "TypeEstablished"
	// Serving reports whether instances are reconciled.
	Serving = "Serving"
	// Progressing reports the rollout of the served spec to the instances.
	Progressing = "Progressing"
)

// FromUnstructured converts an object to a Blueprint. The result shares its templates and schema with the object.
func FromUnstructured(object *unstructured.Unstructured) (*Blueprint, error) {
	var b Blueprint
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &b); err != nil {
		return nil, fmt.Errorf("read Blueprint %s: %w", object.GetName(), err)
	}
	return &b, nil
}

// UnknownFields describes the fields of a spec that this version of the platform does not support. It returns "" if
// there are none.
func UnknownFields(spec map[string]any) string {
	const most = 3
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(spec, &Spec{}, true)
	strict, is := runtime.AsStrictDecodingError(err)
	if !is {
		return "" // other errors are returned by FromUnstructured
	}
	var fields []string
	for _, unknown := range strict.Errors() {
		fields = append(fields, Cut(unknown.Error(), maxQuoted))
	}
	slices.Sort(fields)
	if n := len(fields); n > most {
		fields = append(fields[:most], fmt.Sprintf("and %d more", n-most))
	}
	return strings.Join(fields, ", ")
}
