// Package lastwrites passes the newest versions that a leader has written to the next leader, so that the next leader
// can wait until its caches contain them. It is used by package replica, which does not depend on the engine, and by
// the engine.
package lastwrites

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Versions are the newest resourceVersions that were written, by resource.
type Versions map[schema.GroupResource]uint64

// String returns the versions in JSON. If there are none, it returns an empty string.
func (v Versions) String() string {
	if len(v) == 0 {
		return ""
	}
	encoded := make(map[string]uint64, len(v))
	for resource, version := range v {
		encoded[resource.String()] = version
	}
	data, _ := json.Marshal(encoded) // never fails for this type
	return string(data)
}

// Parse returns the versions in the result of [Versions.String].
func Parse(s string) (Versions, error) {
	if s == "" {
		return nil, nil
	}
	var encoded map[string]uint64
	if err := json.Unmarshal([]byte(s), &encoded); err != nil {
		return nil, fmt.Errorf("parse the last writes: %w", err)
	}
	v := make(Versions, len(encoded))
	for resource, version := range encoded {
		v[schema.ParseGroupResource(resource)] = version
	}
	return v, nil
}

// Number returns a resourceVersion as a number. It returns false if the versions of the server are not numbers.
func Number(resourceVersion string) (uint64, bool) {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	return n, err == nil && n > 0
}

type key struct{}

// With returns a context that carries the last writes of the previous leader.
func With(ctx context.Context, v Versions) context.Context {
	if len(v) == 0 {
		return ctx
	}
	return context.WithValue(ctx, key{}, v)
}

// From returns the last writes of the previous leader, or nil if ctx carries none.
func From(ctx context.Context) Versions {
	v, _ := ctx.Value(key{}).(Versions)
	return v
}
