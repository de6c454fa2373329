package expression

import (
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// perUnit is how much of a value's weight costs one. As in Kubernetes, ten bytes do; so does anything else, whatever its
// size.
const perUnit = 10

// weigh says how much there is in a value, each thing counted as often as it is there. It looks at no more than enough.
func weigh(v ref.Val, enough int) int { return weighed(v, enough, 0) }

func weighed(v ref.Val, enough, depth int) int {
	if depth > maxNesting {
		return enough
	}
	weight := perUnit
	switch v := v.(type) {
	case types.String:
		return len(v) + perUnit
	case types.Bytes:
		return len(v) + perUnit
	case *types.Optional:
		if v.HasValue() {
			return weight + weighed(v.GetValue(), enough-weight, depth+1)
		}
	case traits.Mapper:
		for it := v.Iterator(); weight < enough && it.HasNext() == types.True; {
			key := it.Next()
			weight += weighed(key, enough-weight, depth+1)
			if value, found := v.Find(key); found {
				weight += weighed(value, enough-weight, depth+1)
			}
		}
	case traits.Lister:
		for it := v.Iterator(); weight < enough && it.HasNext() == types.True; {
			weight += weighed(it.Next(), enough-weight, depth+1)
		}
	}
	return weight
}
