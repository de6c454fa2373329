package platform

import (
	"testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
)

func TestOptions_WithoutInstanceMemoryThereIsNoLimit(t *testing.T) {
	for limit, unlimited := range map[int64]bool{0: true, 1 << 20: false} {
		options := Options{InstanceMemory: limit, Workers: 1}
		_, reservation := options.instanceMemory().Reserve(t.Context(), memory.Owner{})
		defer reservation.Release()
		if err := reservation.Grow(1 << 30); (err == nil) != unlimited {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}
