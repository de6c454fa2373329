package handlers

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"
)

// covers tells whether an object has everything that was applied. It may have more fields, which are the API server's
// defaults or others' own, but not more items in a list, for without the schema nobody knows whose those are.
func covers(applied, object any) bool {
	switch applied := applied.(type) {
	case map[string]any:
		object, ok := object.(map[string]any)
		if !ok {
			return len(applied) == 0 && object == nil
		}
		for name, value := range applied {
			there, ok := object[name]
			if name == "ownerReferences" {
				if !coversEachByUID(value, there) {
					return false
				}
				continue
			}
			if !ok && value != nil || !covers(value, there) {
				return false
			}
		}
		return true
	case []any:
		object, ok := object.([]any)
		if !ok || len(applied) != len(object) {
			return false
		}
		for i := range applied {
			if !covers(applied[i], object[i]) {
				return false
			}
		}
		return true
	default:
		return sameScalar(applied, object)
	}
}

// coversEachByUID is covers for owner references, which others may add to.
func coversEachByUID(applied, object any) bool {
	wanted, _ := applied.([]any)
	there, _ := object.([]any)
	for _, ref := range wanted {
		found := false
		for _, other := range there {
			found = found || covers(ref, other)
		}
		if !found {
			return false
		}
	}
	return true
}

// sameScalar compares numbers by what they are in JSON, for which 1 and 1.0 are one.
func sameScalar(a, b any) bool {
	if x, ok := number(a); ok {
		y, ok := number(b)
		return ok && x == y
	}
	return reflect.DeepEqual(a, b)
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	case int:
		return float64(v), true
	case int32:
		return float64(v), true
	default:
		return 0, false
	}
}

// projection is what an object has where something was applied: all of a list, and of maps the applied fields alone.
func projection(applied, object any) any {
	fields, ok := applied.(map[string]any)
	there, isMap := object.(map[string]any)
	if !ok || !isMap {
		return object
	}
	projected := make(map[string]any, len(fields))
	for name, value := range fields {
		if now, ok := there[name]; ok {
			projected[name] = projection(value, now)
		}
	}
	return projected
}

// digest is a short hash of a value by its JSON, in which maps are sorted.
func digest(value any) (string, error) {
	content, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:12]), nil
}
