// Package applied compares an object with a configuration that was applied to it with server-side apply.
package applied

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"math"
	"reflect"
	"slices"
)

// Covers reports whether an object has all values of an applied configuration. The object can have more fields, such as
// defaults and fields owned by other managers. Lists must have the same length because the owner of an item is unknown
// without the schema.
func Covers(config, object any) bool {
	switch config := config.(type) {
	case map[string]any:
		object, isMap := object.(map[string]any)
		if !isMap {
			return len(config) == 0 && object == nil
		}
		return coversFields(config, object)
	case []any:
		object, ok := object.([]any)
		return ok && slices.EqualFunc(config, object, Covers)
	default:
		return equalScalars(config, object)
	}
}

func coversFields(config, object map[string]any) bool {
	for name, value := range config {
		current, exists := object[name]
		if name == "ownerReferences" {
			if !coversOwnerReferences(value, current) {
				return false
			}
			continue
		}
		if !exists && value != nil || !Covers(value, current) {
			return false
		}
	}
	return true
}

// coversOwnerReferences is like Covers but accepts additional owner references in the object.
func coversOwnerReferences(config, object any) bool {
	applied, _ := config.([]any)
	current, _ := object.([]any)
	for _, ref := range applied {
		if !slices.ContainsFunc(current, func(other any) bool { return Covers(ref, other) }) {
			return false
		}
	}
	return true
}

// equalScalars compares numbers by value because JSON does not distinguish 1 from 1.0. Integers are compared exactly: a
// float64 cannot represent all integers above 2^53.
func equalScalars(a, b any) bool {
	x, xIsInteger := integer(a)
	y, yIsInteger := integer(b)
	if xIsInteger && yIsInteger {
		return x == y
	}
	return reflect.DeepEqual(a, b)
}

// integer returns a number as an integer if it is one.
func integer(v any) (value int64, ok bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case int:
		return int64(v), true
	case int32:
		return int64(v), true
	case float64:
		const limit = 1 << 63
		return int64(v), v == math.Trunc(v) && v >= -limit && v < limit
	}
	return 0, false
}

// Projection returns the part of an object that an applied configuration sets. Lists are returned as a whole.
func Projection(config, object any) any {
	fields, isMap := config.(map[string]any)
	current, currentIsMap := object.(map[string]any)
	if !isMap || !currentIsMap {
		return object
	}
	projected := make(map[string]any, len(fields))
	for name, value := range fields {
		if now, exists := current[name]; exists {
			projected[name] = Projection(value, now)
		}
	}
	return projected
}

// Digest returns a short hash of the values as JSON with sorted map keys.
func Digest(values ...any) (string, error) {
	digest, _, err := DigestAndSize(values...)
	return digest, err
}

// DigestAndSize is like Digest, and also returns the size of the JSON in bytes.
func DigestAndSize(values ...any) (digest string, size int64, err error) {
	hash := sha256.New()
	counted := counter{Writer: hash}
	for _, value := range values {
		if err := json.NewEncoder(&counted).Encode(value); err != nil {
			return "", 0, err
		}
	}
	return hex.EncodeToString(hash.Sum(nil)[:12]), counted.size, nil
}

// counter counts the bytes that are written.
type counter struct {
	io.Writer
	size int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.size += int64(len(p))
	return c.Writer.Write(p)
}
