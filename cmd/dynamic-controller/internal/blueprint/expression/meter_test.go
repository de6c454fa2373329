package expression

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/memory"
)

// An evaluation stops before a call whose result exceeds the reservation. Afterwards, the memory is free again.
func TestRun_ReservesMemory(t *testing.T) {
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]any{"self": map[string]any{
		"json": "[" + strings.Repeat("{},", 60_000) + "{}]", "text": strings.Repeat("a", 200_000),
		"items": slices.Repeat([]any{map[string]any{"a": int64(1)}}, 10_000), "numbers": counted(10_000)["self"],
	}}
	for _, c := range []struct {
		text string
		fits bool
	}{
		{"self.items.size()", true},
		{"self.items.all(i, i.a == 1)", true},
		{"self.text + 'b'", true},
		{"json.unmarshal(self.json)", false},
		{"self.text.split('')", false},
		{"self.text.replace('a', 'bbbbbbbbbbbbbbbbbbbbbbbbb')", false},
		{"lists.range(15).map(i, self.text).join()", false},
		{"self.items.map(i, {'b': i})", false},
		{"self.items.map(i, i.merge({'b': 1}))", false},
		{"json.marshal([self.items, self.items])", false},
		{"lists.range(10).map(i, self.items + self.items)", false},
		{"lists.range(200).map(i, base64.encode(bytes(self.text)))", false},
	} {
		p, err := env.Compile(c.text)
		if err != nil {
			t.Fatal(err)
		}
		budget := memory.NewBudget(4<<20, 1) // 2.5 MiB for one reservation
		ctx, reservation := budget.Reserve(t.Context(), memory.Owner{})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err = p.Run(ctx, variables)
		runtime.ReadMemStats(&after)
		var tooLarge *memory.TooLargeError
		isTooLarge := errors.As(err, &tooLarge) && context.Cause(ctx) != nil
		if isTooLarge == c.fits || c.fits && err != nil {
			t.Errorf("%s: got %v", c.text, err)
		}
		if allocated := (after.TotalAlloc - before.TotalAlloc) >> 20; allocated > 12 {
			t.Errorf("%s: %d MiB were allocated", c.text, allocated)
		}
		_, other := budget.Reserve(t.Context(), memory.Owner{})
		if c.fits && other.Claim(budget.Largest(), budget.Largest()) != nil {
			t.Errorf("%s: the memory is not free after the evaluation", c.text)
		}
		reservation.Release()
	}
}
