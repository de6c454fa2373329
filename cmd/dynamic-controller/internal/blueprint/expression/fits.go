package expression

import (
	"slices"

	"github.com/google/cel-go/common/types"
	"k8s.io/apiserver/pkg/cel/common"
)

// TypesOf are the types in JSON that a value may have by its schema, nil if that leaves it open. An integer is a number: the
// server takes a fraction, too, where there is a number.
func TypesOf(s common.Schema) []string {
	switch {
	case s == nil:
		return nil
	case isIntOrString(s):
		return []string{"number", "string"}
	case s.IsXEmbeddedResource():
		return []string{"object"}
	case s.Type() == "":
		return nil
	case s.Type() == "integer":
		return []string{"number"}
	}
	return []string{s.Type()}
}

// Fits tells whether its value may stand where the schema describes what there is. One that may be absent fits if it does
// when it is there.
func (p *Program) Fits(s common.Schema) bool { return fits(p.output, s) }

func fits(t *types.Type, s common.Schema) bool {
	wanted := TypesOf(s)
	may := func(made string) bool { return wanted == nil || slices.Contains(wanted, made) }
	switch t.Kind() {
	case types.BoolKind:
		return may("boolean")
	case types.IntKind, types.UintKind, types.DoubleKind:
		return may("number")
	case types.StringKind, types.BytesKind, types.TimestampKind, types.DurationKind:
		return may("string")
	case types.StructKind:
		return may("object")
	case types.ListKind:
		return may("array") && (isOpen(s) || fits(t.Parameters()[0], s.Items()))
	case types.MapKind:
		if isOpen(s) || len(s.Properties()) > 0 || s.AdditionalProperties() == nil {
			return may("object")
		}
		return may("object") && fits(t.Parameters()[1], s.AdditionalProperties().Schema())
	case types.OpaqueKind:
		if t.TypeName() == types.OptionalType.TypeName() {
			return fits(t.Parameters()[0], s)
		}
	}
	return true // or says, when it is put there, that it cannot be
}
