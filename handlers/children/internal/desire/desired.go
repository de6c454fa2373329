package desire

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Desired describes the desired children of a parent. Package children documents its fields.
type Desired struct {
	Stages [][]Spec
	Absent []*unstructured.Unstructured
	Kinds  []schema.GroupVersionKind
}

// Spec describes a desired child. Package children documents its fields.
type Spec struct {
	Object        *unstructured.Unstructured
	Retain, Adopt bool
	// OnImmutable is Fail, Recreate or empty, which means Fail.
	OnImmutable string
	// KeepExisting lists the paths of the fields whose existing values are kept.
	KeepExisting []string
}
