package persistent

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// checkInvariants reports nodes that are empty, too large, too small or counted incorrectly.
func checkInvariants[V any](t interface{ Errorf(string, ...any) }, n *node[V], depth int) {
	switch {
	case n == nil:
	case n.children == nil:
		if len(n.entries) == 0 || len(n.entries) > maxLeaf && depth < maxDepth {
			t.Errorf("leaf at depth %d has %d entries", depth, len(n.entries))
		}
	default:
		count := 0
		for _, child := range n.children {
			checkInvariants(t, child, depth+1)
			count += child.len()
		}
		if count != n.count || count < minBranch || len(n.entries) > 0 {
			t.Errorf("branch at depth %d: got count %d and %d own entries, want count %d",
				depth, n.count, len(n.entries), count)
		}
	}
}

// checkEqual compares all ways of reading a map with a model.
func checkEqual(t interface{ Errorf(string, ...any) }, m Map[int], want map[string]int) {
	if got := maps.Collect(m.All()); !maps.Equal(got, want) {
		t.Errorf("All: got %v, want %v", got, want)
	}
	if m.Len() != len(want) {
		t.Errorf("Len: got %d, want %d", m.Len(), len(want))
	}
	for key, value := range want {
		if got := m.Get(key); got != value {
			t.Errorf("Get(%q): got %d, want %d", key, got, value)
		}
	}
	if got := m.Get("absent"); got != 0 {
		t.Errorf("Get of an absent key: got %d", got)
	}
	checkInvariants(t, m.root, 0)
}

// TestMap_EqualsModel applies random edits and keeps every version. At the end, each version must equal its model.
func TestMap_EqualsModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		keys := rapid.SampledFrom([]int{4, 20, 200, 2000}).Draw(r, "keys")
		source := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 0))
		versions, models := []Map[int]{{}}, []map[string]int{{}}
		for range rapid.IntRange(1, 12).Draw(r, "edits") {
			base := source.IntN(len(versions))
			var edit Edit[int]
			model := maps.Clone(models[base])
			deletions := source.IntN(4) // per 3 changes: from none to all of them
			for range source.IntN(2 * keys) {
				key := fmt.Sprint("key", source.IntN(keys))
				if source.IntN(3) < deletions {
					edit.Delete(key)
					delete(model, key)
				} else {
					value := 1 + source.IntN(1000)
					edit.Set(key, value)
					model[key] = value
				}
			}
			versions, models = append(versions, versions[base].With(&edit)), append(models, model)
		}
		for i, m := range versions {
			checkEqual(r, m, models[i])
		}
	})
}

// TestMap_CollidingHashes covers leaves at the maximum depth, which are not split.
func TestMap_CollidingHashes(t *testing.T) {
	var n *node[int]
	var changes []change[int]
	for i := range 3 * maxLeaf {
		changes = append(changes, change[int]{entry: entry[int]{fmt.Sprint("key", i), i}})
	}
	n = n.with(changes, maxDepth)
	checkInvariants(t, n, maxDepth)
	if n.len() != 3*maxLeaf || n.find("key40") < 0 {
		t.Errorf("the leaf has %d entries, want %d", n.len(), 3*maxLeaf)
	}
}

// FuzzMap_Immutability edits one map in two ways. The original and the first copy must not change.
func FuzzMap_Immutability(f *testing.F) {
	f.Add(uint64(1), 10, []byte{1, 2, 3}, []byte{3, 130, 131})
	f.Add(uint64(2), 17, []byte{1}, []byte{128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138})
	f.Add(uint64(3), 300, []byte("some keys"), []byte("some other keys"))
	f.Fuzz(func(t *testing.T, seed uint64, size int, first, second []byte) {
		var edit Edit[int]
		original := map[string]int{}
		source := rand.New(rand.NewPCG(seed, 0))
		for range max(0, min(size, 1000)) {
			key, value := fmt.Sprint(source.IntN(256)), source.Int()
			edit.Set(key, value)
			original[key] = value
		}
		base := Map[int]{}.With(&edit)
		copies, models := make([]Map[int], 2), make([]map[string]int, 2)
		for i, list := range [][]byte{first, second} {
			var edit Edit[int]
			models[i] = maps.Clone(original)
			for _, b := range list {
				key := fmt.Sprint(b % 128)
				if b >= 128 {
					edit.Delete(key)
					delete(models[i], key)
				} else {
					edit.Set(key, int(b))
					models[i][key] = int(b)
				}
			}
			copies[i] = base.With(&edit)
		}
		checkEqual(t, base, original)
		checkEqual(t, copies[0], models[0])
		checkEqual(t, copies[1], models[1])
	})
}

// TestMap_ConcurrentReadersAndEdits is run with the race detector.
func TestMap_ConcurrentReadersAndEdits(t *testing.T) {
	var edit Edit[int]
	model := map[string]int{}
	for i := range 200 {
		key := fmt.Sprint("key", i)
		edit.Set(key, i)
		model[key] = i
	}
	base := Map[int]{}.With(&edit)
	var running sync.WaitGroup
	for g := range 4 {
		running.Go(func() {
			source := rand.New(rand.NewPCG(uint64(g), 0))
			own, ownModel := base, maps.Clone(model)
			for range 20 {
				var edit Edit[int]
				for range 10 {
					key := fmt.Sprint("key", source.IntN(300))
					if source.IntN(2) == 0 {
						edit.Delete(key)
						delete(ownModel, key)
					} else {
						edit.Set(key, g)
						ownModel[key] = g
					}
				}
				own = own.With(&edit)
				checkEqual(t, base, model)
				checkEqual(t, own, ownModel)
			}
		})
	}
	running.Wait()
}

func TestMap_IterationCanBeEnded(t *testing.T) {
	for _, size := range []int{maxLeaf, 10 * maxLeaf} {
		var edit Edit[int]
		for i := range size {
			edit.Set(fmt.Sprint("key", i), i)
		}
		entries := 0
		for range (Map[int]{}).With(&edit).All() {
			if entries++; entries == 3 {
				break
			}
		}
		if entries != 3 {
			t.Errorf("got %d entries of %d, want 3", entries, size)
		}
	}
}
