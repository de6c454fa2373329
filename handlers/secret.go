package handlers

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var secretKind = corev1.SchemeGroupVersion.WithKind("Secret")

// encodeStringData moves the stringData of a Secret to its data. Like in the API server, stringData takes precedence.
// The API server does the same when it stores a Secret, but a manager that applies stringData does not own the
// resulting data: drift would not be detected, and keys that are no longer applied would not be removed.
func encodeStringData(gvk schema.GroupVersionKind, secret *unstructured.Unstructured) error {
	texts, has := secret.Object["stringData"]
	if gvk != secretKind || !has {
		return nil
	}
	delete(secret.Object, "stringData")
	if texts == nil {
		return nil
	}
	fields, isMap := texts.(map[string]any)
	if !isMap {
		return fmt.Errorf("stringData: must be a map of strings, not %s", jsonTypeOf(texts))
	}
	if len(fields) == 0 {
		return nil
	}
	data, isMap := secret.Object["data"].(map[string]any)
	if !isMap && secret.Object["data"] != nil {
		return fmt.Errorf("data: must be a map of strings, not %s", jsonTypeOf(secret.Object["data"]))
	}
	if data == nil {
		data = make(map[string]any, len(fields))
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		text, isString := fields[key].(string)
		if !isString {
			// The key is not named: a template can make it of another Secret's data.
			return fmt.Errorf("stringData: every value must be a string, and one is %s", jsonTypeOf(fields[key]))
		}
		data[key] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	secret.Object["data"] = data
	return nil
}

// jsonTypeOf returns the JSON type of a value, for errors that must not contain the value itself.
func jsonTypeOf(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case string:
		return "a string"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	default:
		return "a number"
	}
}

// dropStaleStringData removes the keys of a Secret that an earlier version of this package applied with stringData and
// that are no longer wanted. No manager owns them, so that an apply does not remove them. It returns the updated
// Secret.
func (p *pass) dropStaleStringData(ctx context.Context, child *child, current *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if child.apply.GroupVersionKind() != secretKind {
		return current, nil
	}
	if len(current.GetManagedFields()) == 0 { // the cache keeps none
		live, err := p.findLive(ctx, child)
		if err != nil || live == nil {
			return current, err
		}
		current = live
	}
	wanted, _ := child.apply.Object["data"].(map[string]any)
	stale := map[string]any{}
	for _, key := range p.staleStringData(current) {
		if _, keep := wanted[key]; !keep {
			stale[key] = nil
		}
	}
	if len(stale) == 0 {
		return current, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": string(current.GetUID()), "resourceVersion": current.GetResourceVersion()},
		"data":     stale,
	})
	if err != nil {
		return nil, err
	}
	now, err := resource(p.config.Client, child.id.GVR, child.id.Namespace()).
		Patch(ctx, child.id.Name(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: p.config.Name})
	if err != nil {
		return nil, fmt.Errorf("remove the keys that were applied with stringData: %w", err)
	}
	return now, nil
}

// staleStringData lists the keys of a Secret's data that were applied with stringData and that no other manager owns.
func (p *pass) staleStringData(secret *unstructured.Unstructured) (keys []string) {
	applied, _ := appliedFields(secret, p.config.Name, "")
	data, _ := secret.Object["data"].(map[string]any)
	for field := range applied["f:stringData"] {
		key, isField := strings.CutPrefix(field, "f:")
		if _, there := data[key]; isField && there && !isOwned(secret, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// isOwned reports whether a manager owns a key of a Secret's data. It returns true if managed fields cannot be parsed.
func isOwned(secret metav1.Object, key string) bool {
	for _, entry := range secret.GetManagedFields() {
		if entry.FieldsV1 == nil {
			continue
		}
		var fields fieldSet
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err != nil {
			return true
		}
		if _, owned := fields["f:data"]["f:"+key]; owned {
			return true
		}
	}
	return false
}
