package expression

import (
	"maps"
	"slices"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// sorting converts the values of variables. Comprehensions visit the keys of a converted map in sorted order. With
// cel-go's own adapter, the order would be random, and so would be the order of a list that is derived from a map. If
// such a list is part of a status, each evaluation could change the status and thereby cause the next evaluation.
type sorting struct{ types.Adapter }

func (s sorting) NativeToValue(value any) ref.Val {
	switch value := value.(type) {
	case map[string]any:
		return sortedMap{types.NewStringInterfaceMap(s, value), s, value}
	case []any:
		return nativeList{types.NewDynamicList(s, value), value}
	}
	return s.Adapter.NativeToValue(value)
}

// nativeList is a list in a variable.
type nativeList struct {
	traits.Lister
	value []any
}

func (l nativeList) IsZeroValue() bool { return len(l.value) == 0 }

type sortedMap struct {
	traits.Mapper
	adapter types.Adapter
	value   map[string]any
}

func (m sortedMap) Iterator() traits.Iterator {
	return types.NewStringList(m.adapter, slices.Sorted(maps.Keys(m.value))).Iterator()
}

func (m sortedMap) IsZeroValue() bool { return len(m.value) == 0 }
