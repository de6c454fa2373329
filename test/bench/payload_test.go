package bench

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// payloadVersion is the CRD version of types whose objects have payloads. It has no status subresource, so that one
// request creates an object and its status.
var payloadVersion = map[string]any{
	"name": "v1", "served": true, "storage": true,
	"schema": map[string]any{"openAPIV3Schema": map[string]any{
		"type": "object",
		"properties": map[string]any{
			"spec": map[string]any{
				"type": "object",
				"properties": map[string]any{
					"n":          map[string]any{"type": "integer"},
					"replicas":   map[string]any{"type": "integer"},
					"paused":     map[string]any{"type": "boolean"},
					"region":     text,
					"image":      text,
					"parameters": map[string]any{"type": "object", "additionalProperties": text},
					"env": map[string]any{"type": "array", "items": map[string]any{
						"type": "object", "properties": map[string]any{"name": text, "value": text},
					}},
				},
			},
			"status": map[string]any{
				"type": "object",
				"properties": map[string]any{
					"phase":              text,
					"observedGeneration": map[string]any{"type": "integer"},
					"conditions": map[string]any{
						"type": "array",
						"items": map[string]any{
							"type": "object", "required": []any{"type"},
							"properties": map[string]any{
								"type": text, "status": text, "reason": text, "message": text, "lastTransitionTime": text,
							},
						},
						"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"},
					},
				},
			},
		},
	}},
}

var text = map[string]any{"type": "string"}

// serverFields is the size in JSON of the metadata that the API server adds, excluding managedFields.
const serverFields = len(`"creationTimestamp":"2026-01-01T00:00:00Z","generation":1,"resourceVersion":"1000000",` +
	`"uid":"00000000-0000-0000-0000-000000000000",`)

// payload returns the nth object of a type with payloads. Once the API server has stored the object, its JSON without
// managedFields takes size bytes. All strings are pseudorandom and the same in each run.
func payload(gvr schema.GroupVersionResource, n, size int) *unstructured.Unstructured {
	r := newRandom(n)
	parameters := map[string]any{}
	for range min(4, 1+size/1000) {
		parameters[r.word(6, 12)] = r.word(4, 24)
	}
	spec := map[string]any{
		"n":          int64(0),
		"replicas":   int64(r.IntN(20)),
		"paused":     r.IntN(2) == 0,
		"region":     r.word(6, 12),
		"image":      fmt.Sprintf("registry.%s.example.com/%s:%s", r.word(4, 8), r.word(6, 12), r.word(8, 8)),
		"parameters": parameters,
	}
	var conditions []any
	for _, kind := range []string{"Ready", "Synced", "Healthy"}[:min(3, 1+size/2000)] {
		conditions = append(conditions, map[string]any{
			"type": kind, "status": "True", "reason": r.word(8, 16), "message": r.word(10, 40),
			"lastTransitionTime": fmt.Sprintf("2026-0%d-1%dT1%d:3%d:00Z", 1+r.IntN(9), r.IntN(10), r.IntN(10), r.IntN(10)),
		})
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gvr.GroupVersion().String(),
		"kind":       kindOf(gvr),
		"metadata": map[string]any{
			"namespace": namespace,
			"name":      payloadName(n),
			"labels": map[string]any{
				"app.kubernetes.io/name":     r.word(5, 12),
				"app.kubernetes.io/instance": r.word(8, 16),
				"bench.example.com/tenant":   r.word(6, 10),
			},
			"annotations": map[string]any{"bench.example.com/checksum": r.word(24, 24)},
		},
		"spec":   spec,
		"status": map[string]any{"phase": r.word(5, 9), "observedGeneration": int64(1), "conditions": conditions},
	}}
	spec["env"] = []any{}
	spec["env"] = r.variables(size - serverFields - sizeOf(object))
	return object
}

// payloadName is the name of the nth object with a payload.
func payloadName(n int) string {
	r := newRandom(n)
	return fmt.Sprintf("%s-%s-%d", r.word(6, 12), r.word(5, 5), n)
}

// sizeOf returns the size of the object in JSON, without managedFields.
func sizeOf(object *unstructured.Unstructured) int {
	object = object.DeepCopy()
	object.SetManagedFields(nil)
	data, err := json.Marshal(object.Object)
	if err != nil {
		panic(err) // The object contains only maps, slices, strings and numbers.
	}
	return len(data)
}

// random is a source of random strings.
type random struct{ *rand.Rand }

// newRandom returns the source for the nth object.
func newRandom(n int) random { return random{rand.New(rand.NewPCG(uint64(n), 13))} }

// word returns a random string of at least shortest and at most longest letters.
func (r random) word(shortest, longest int) string {
	word := make([]byte, shortest+r.IntN(longest-shortest+1))
	for i := range word {
		word[i] = byte('a' + r.IntN('z'-'a'+1))
	}
	return string(word)
}

// variables returns a list of names and values that takes size bytes in JSON, or slightly fewer.
func (r random) variables(size int) []any {
	const (
		overhead = len(`{"name":"","value":""},`)
		rest     = 120 // A remainder below this size is put into one item.
		name     = 12
	)
	list := []any{}
	add := func(nameSize, valueSize int) {
		list = append(list, map[string]any{"name": r.word(nameSize, nameSize), "value": r.word(valueSize, valueSize)})
		size -= overhead + nameSize + valueSize
	}
	for size >= rest {
		add(8+r.IntN(8), 12+r.IntN(30))
	}
	if last := size - overhead - name; last > 0 {
		add(name, last)
	}
	return list
}
