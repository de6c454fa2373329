package compare

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/dynamic-controller/engine/handlers/internal/ownership"
)

func TestPredict(t *testing.T) {
	const (
		ours = `{"f:spec":{"f:image":{},"f:gone":{},"f:shared":{},"f:part":{"f:a":{}},` +
			`"f:ports":{"k:{\"port\":80}":{".":{},"f:port":{},"f:name":{}},"k:{\"port\":81}":{".":{},"f:port":{}}},` +
			`"f:tags":{"v:\"a\"":{},"v:\"b\"":{}},"f:args":{}}}`
		theirs = `{"f:spec":{"f:shared":{},"f:replicas":{},"f:part":{"f:b":{}},` +
			`"f:ports":{"k:{\"port\":90}":{".":{},"f:port":{}}},"f:tags":{"v:\"c\"":{}}}}`
	)
	entry := func(manager string, operation metav1.ManagedFieldsOperationType, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: operation, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(fields),
		}
	}
	owner := &unstructured.Unstructured{Object: map[string]any{}}
	owner.SetManagedFields([]metav1.ManagedFieldsEntry{
		entry("m", metav1.ManagedFieldsOperationApply, ours), entry("other", metav1.ManagedFieldsOperationUpdate, theirs),
	})
	entries, err := ownership.Of(owner)
	if err != nil {
		t.Fatal(err)
	}
	object := parsed(t, `{spec: {image: a, gone: x, shared: x, replicas: 3, defaulted: y, part: {a: 1, b: 2},
		ports: [{port: 80, name: web, protocol: TCP}, {port: 81}, {port: 90}], tags: [a, b, c], args: [x]}}`)
	for name, test := range map[string]struct{ config, want string }{
		"a value changes, and a field leaves": {
			`{spec: {image: b, ports: [{port: 80, name: web}], tags: [a], args: [y, z]}}`,
			`{spec: {image: b, shared: x, replicas: 3, defaulted: y, part: {b: 2},
				ports: [{port: 80, name: web, protocol: TCP}, {port: 90}], tags: [a, c], args: [y, z]}}`,
		},
		"lists leave": {
			`{spec: {image: a}}`,
			`{spec: {image: a, shared: x, replicas: 3, defaulted: y, part: {b: 2}, ports: [{port: 90}], tags: [c]}}`,
		},
		"an item and a field come": {
			`{spec: {image: a, new: 1, ports: [{port: 82}, {port: 80}, {port: 81}], tags: [d, a, b], args: [x]}}`,
			`{spec: {image: a, new: 1, shared: x, replicas: 3, defaulted: y, part: {b: 2},
				ports: [{port: 82}, {port: 80, protocol: TCP}, {port: 81}, {port: 90}], tags: [d, a, b, c], args: [x]}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Predict(entries, "m", parsed(t, test.config), object)
			if diff := cmp.Diff(parsed(t, test.want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
