package published

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// document is what a group and version publishes. It is never changed.
type document struct {
	url    string
	digest string
	kinds  map[schema.GroupVersionKind]*described
}

// definition is what is kept of a schema: what tells whether a value may be there.
type definition struct {
	ref         string // to another definition, of which all but the default is
	kind        string
	format      string
	properties  map[string]*definition
	items       *definition
	values      *definition // of a map; without it any is whether there may be some
	any         bool
	enum        []any
	listType    string
	keys        []string
	value       any // that the server sets where there is none
	open        bool
	intOrString bool
	embedded    bool
}

// written is a schema as it is published.
type written struct {
	Ref         string                    `json:"$ref"`
	Type        string                    `json:"type"`
	Format      string                    `json:"format"`
	Properties  map[string]*written       `json:"properties"`
	Items       *written                  `json:"items"`
	Values      json.RawMessage           `json:"additionalProperties"`
	Enum        []any                     `json:"enum"`
	Default     any                       `json:"default"`
	AllOf       []*written                `json:"allOf"`
	OneOf       []*written                `json:"oneOf"`
	AnyOf       []json.RawMessage         `json:"anyOf"`
	Not         json.RawMessage           `json:"not"`
	Kinds       []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
	ListType    string                    `json:"x-kubernetes-list-type"`
	Keys        []string                  `json:"x-kubernetes-list-map-keys"`
	Open        bool                      `json:"x-kubernetes-preserve-unknown-fields"`
	IntOrString bool                      `json:"x-kubernetes-int-or-string"`
	Embedded    bool                      `json:"x-kubernetes-embedded-resource"`
}

// read takes a document apart. What is not written as schemas are is not described.
func read(url string, data []byte) (*document, error) {
	var content struct {
		Components struct {
			Schemas map[string]*written `json:"schemas"`
		} `json:"components"`
	}
	if err := unmarshal(data, &content); err != nil {
		return nil, err
	}
	out := &document{url: url, digest: fmt.Sprintf("%x", sha256.Sum256(data))[:16], kinds: map[schema.GroupVersionKind]*described{}}
	all := make(map[string]*definition, len(content.Components.Schemas))
	for name, w := range content.Components.Schemas {
		if w == nil {
			continue
		}
		if all[name] = exceptions[name]; all[name] == nil {
			all[name] = w.kept()
		}
		for _, kind := range w.Kinds {
			if _, twice := out.kinds[kind]; twice {
				out.kinds[kind] = nil // nobody knows which one it is
				continue
			}
			out.kinds[kind] = &described{nothing, all[name], all, &chain{name: name}}
		}
	}
	return out, nil
}

// exceptions are other than they are said to be. The server has the same: the one may be anything, and the other, where it is
// published as in OpenAPI v2, is a string, and may be a number.
var exceptions = map[string]*definition{
	"io.k8s.apimachinery.pkg.runtime.RawExtension":  {},
	"io.k8s.apimachinery.pkg.api.resource.Quantity": {intOrString: true},
}

// unmarshal reads what is written as it should be, and leaves out the rest.
func unmarshal(data []byte, to any) error {
	var other *json.UnmarshalTypeError
	if err := json.Unmarshal(data, to); err != nil && !errors.As(err, &other) {
		return err
	}
	return nil
}

const refPrefix = "#/components/schemas/"

// notScalar: other than the alternatives of an IntOrString or a Quantity.
func notScalar(w *written) bool {
	return w == nil || !slices.Contains([]string{"string", "integer", "number"}, w.Type)
}

// kept is nil if nothing is written. What is one of several is not described, but for numbers that may be strings. A single
// allOf is how a reference has a description beside it: https://github.com/kubernetes/kubernetes/issues/106387
func (w *written) kept() *definition {
	if w == nil {
		return nil
	}
	ref := w.Ref
	if len(w.AllOf) == 1 && w.AllOf[0] != nil {
		ref = w.AllOf[0].Ref
	}
	switch {
	case ref != "":
		return &definition{ref: strings.TrimPrefix(ref, refPrefix), value: w.Default}
	case len(w.OneOf) > 0 && !slices.ContainsFunc(w.OneOf, notScalar):
		return &definition{intOrString: true, value: w.Default}
	case len(w.AllOf)+len(w.OneOf)+len(w.AnyOf)+len(w.Not) > 0:
		return &definition{value: w.Default}
	}
	d := &definition{
		kind: w.Type, format: w.Format, items: w.Items.kept(), enum: w.Enum, listType: w.ListType, keys: w.Keys, value: w.Default,
		open: w.Open, intOrString: w.IntOrString, embedded: w.Embedded,
	}
	if len(w.Properties) > 0 {
		d.properties = make(map[string]*definition, len(w.Properties))
		for name, p := range w.Properties {
			d.properties[name] = p.kept()
		}
	}
	switch {
	case len(w.Values) == 0:
	case w.Values[0] == '{':
		var values written
		if unmarshal(w.Values, &values) == nil {
			d.values, d.any = values.kept(), true
		}
	default:
		d.any = string(w.Values) == "true"
	}
	return d
}
