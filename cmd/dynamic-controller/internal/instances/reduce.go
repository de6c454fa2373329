package instances

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// reducedField is a field of objects that ReduceCached has reduced.
const reducedField = "platform.example.com/reduced"

// ReduceCached removes the content of a large object before it is decoded for [Transform], which removes it anyway. It
// keeps Blueprints, for which other limits apply.
func ReduceCached(text []byte) []byte {
	const maxDecoded = 2 * maxCachedBytes // so that Transform decides about all objects whose size is near the limit
	var object struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if len(text) <= maxDecoded || utiljson.Unmarshal(text, &object) != nil {
		return text
	}
	kind := schema.FromAPIVersionAndKind(object.APIVersion, object.Kind).GroupKind()
	if kind == blueprint.GroupVersionKind.GroupKind() {
		return text
	}
	reduced := Reduce(text)
	if !bytes.HasPrefix(reduced, []byte("{")) {
		return text
	}
	return append([]byte(`{"`+reducedField+`":true,`), reduced[1:]...)
}

// Reduce removes the content of a large object from a response of the API server. It keeps the metadata without the
// managedFields, and the status. Of a large status, it keeps only the fields that the platform writes for all
// Blueprints. It returns the text unchanged if it is small or not an object.
//
// The API server returns the whole object after each write. Decoding it can take fifty times the memory of the text.
func Reduce(text []byte) []byte {
	if len(text) <= maxCachedBytes {
		return text
	}
	var object struct {
		APIVersion json.RawMessage `json:"apiVersion,omitempty"`
		Kind       json.RawMessage `json:"kind,omitempty"`
		Metadata   json.RawMessage `json:"metadata,omitempty"`
		Status     json.RawMessage `json:"status,omitempty"`
		Items      json.RawMessage `json:"items,omitempty"`
	}
	if utiljson.Unmarshal(text, &object) != nil || len(object.Items) > 0 {
		return text
	}
	if len(object.Metadata) > maxCachedBytes {
		var metadata map[string]json.RawMessage // has few fields
		if utiljson.Unmarshal(object.Metadata, &metadata) == nil {
			delete(metadata, "managedFields")
			delete(metadata, "labels")
			delete(metadata, "ownerReferences")
			object.Metadata, _ = json.Marshal(metadata)
		}
	}
	if len(object.Status) > maxCachedBytes {
		var status struct {
			Conditions         json.RawMessage `json:"conditions,omitempty"`
			ObservedGeneration json.RawMessage `json:"observedGeneration,omitempty"`
			Revision           json.RawMessage `json:"revision,omitempty"`
		}
		if utiljson.Unmarshal(object.Status, &status) == nil {
			object.Status, _ = json.Marshal(status)
		}
	}
	reduced, err := json.Marshal(object)
	if err != nil {
		return text
	}
	return reduced
}
