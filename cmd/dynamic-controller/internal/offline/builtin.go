package offline

import (
	"bytes"
	"compress/gzip"
	_ "embed" // for the built-in kinds
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// BuiltinData contains the built-in kinds of Kubernetes. "make builtin-schemas" generates it with the API server from
// test/controlplane.
type BuiltinData struct {
	Kinds   []BuiltinKind              `json:"kinds"`
	Schemas map[string]json.RawMessage `json:"schemas"` // by name, without descriptions
}

// BuiltinKind is a built-in kind.
type BuiltinKind struct {
	Group      string   `json:"group"`
	Version    string   `json:"version"`
	Kind       string   `json:"kind"`
	Resource   string   `json:"resource"`
	Singular   string   `json:"singular"`
	Namespaced bool     `json:"namespaced"`
	Verbs      []string `json:"verbs"`
	Schema     string   `json:"schema"` // name in BuiltinData.Schemas, or "" if the kind has no schema
}

//go:embed builtin.json.gz
var builtinData []byte

var builtin = sync.OnceValue(func() *BuiltinData {
	var out BuiltinData
	unzipped, err := gzip.NewReader(bytes.NewReader(builtinData))
	if err == nil {
		err = json.NewDecoder(unzipped).Decode(&out)
	}
	if err != nil {
		panic(err) // the data is embedded and tested
	}
	return &out
})

// Builtin returns a resolver for the embedded schemas of built-in kinds.
func Builtin() resolver.SchemaResolver { return builtin() }

// ResolveSchema returns a new copy of the schema of a built-in kind.
func (d *BuiltinData) ResolveSchema(gvk schema.GroupVersionKind) (*spec.Schema, error) {
	for _, k := range d.Kinds {
		if k.gvk() == gvk && k.Schema != "" {
			return resolver.PopulateRefs(d.schema, k.Schema)
		}
	}
	return nil, fmt.Errorf("%s: %w", gvk, resolver.ErrSchemaNotFound)
}

func (d *BuiltinData) schema(ref string) (*spec.Schema, bool) {
	var out spec.Schema
	err := json.Unmarshal(d.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")], &out)
	return &out, err == nil
}

func (k BuiltinKind) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Kind}
}

// builtinVerbs returns the verbs that are supported for the resource of a built-in kind.
func builtinVerbs(resource schema.GroupVersionResource) ([]string, error) {
	for _, k := range builtin().Kinds {
		if k.gvk().GroupVersion().WithResource(k.Resource) == resource {
			return k.Verbs, nil
		}
	}
	return nil, &meta.NoResourceMatchError{PartialResource: resource}
}

// builtinMapper returns a mapper for the built-in kinds.
func builtinMapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, k := range builtin().Kinds {
		scope := meta.RESTScopeRoot
		if k.Namespaced {
			scope = meta.RESTScopeNamespace
		}
		gv := k.gvk().GroupVersion()
		mapper.AddSpecific(k.gvk(), gv.WithResource(k.Resource), gv.WithResource(k.Singular), scope)
	}
	return mapper
}
