package expression

import (
	"github.com/google/cel-go/common/types"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
)

// Schema returns a schema for the JSON form of the value. The schema accepts any value if the type of the expression is
// known only at evaluation. It does not describe the fields of objects.
func (p *Program) Schema() apiextensionsv1.JSONSchemaProps { return schemaOf(p.output) }

func schemaOf(t *types.Type) apiextensionsv1.JSONSchemaProps {
	switch t.Kind() {
	case types.BoolKind:
		return apiextensionsv1.JSONSchemaProps{Type: "boolean"}
	case types.IntKind, types.UintKind:
		return apiextensionsv1.JSONSchemaProps{Type: "integer"}
	case types.DoubleKind:
		return apiextensionsv1.JSONSchemaProps{Type: "number"}
	case types.StringKind, types.BytesKind, types.TimestampKind, types.DurationKind:
		return apiextensionsv1.JSONSchemaProps{Type: "string"}
	case types.StructKind:
		return apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
	case types.ListKind:
		return apiextensionsv1.JSONSchemaProps{
			Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: ptr.To(schemaOf(t.Parameters()[0]))},
		}
	case types.MapKind:
		return apiextensionsv1.JSONSchemaProps{
			Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{
				Allows: true, Schema: ptr.To(schemaOf(t.Parameters()[1])),
			},
		}
	case types.OpaqueKind:
		if t.TypeName() == types.OptionalType.TypeName() {
			return schemaOf(t.Parameters()[0])
		}
	}
	return apiextensionsv1.JSONSchemaProps{XPreserveUnknownFields: ptr.To(true)}
}
