package blueprint_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// dense are Blueprints that have as much of one kind of part as they may.
var dense = map[string]func(*blueprint.Blueprint){
	"properties": func(b *blueprint.Blueprint) {
		properties := map[string]any{}
		for i := range 4000 {
			properties[fmt.Sprint("p", i)] = map[string]any{"type": "string"}
		}
		b.Spec.Type.Schema["properties"] = map[string]any{"spec": map[string]any{"type": "object", "properties": properties}}
		b.Spec.Resources = []blueprint.Resource{config("a", "")}
	},
	"values of templates": func(b *blueprint.Blueprint) {
		for i := range 100 {
			r := config(fmt.Sprint("a", i), "")
			r.Template["data"] = map[string]any{"items": wide(100)}
			b.Spec.Resources = append(b.Spec.Resources, r)
		}
	},
	"small expressions": func(b *blueprint.Blueprint) {
		for i := range 100 {
			r, data := config(fmt.Sprint("a", i), ""), map[string]any{}
			for j := range 9 {
				data[fmt.Sprint("k", j)] = fmt.Sprintf("${self.metadata.name + '%d' + string(%d)}", i, j)
			}
			r.Template["data"] = data
			b.Spec.Resources = append(b.Spec.Resources, r)
		}
	},
	"lists of names": func(b *blueprint.Blueprint) {
		b.Spec.Resources = []blueprint.Resource{config("a", "")}
		for i := range 30 {
			list := fmt.Sprintf("${[%d%s].size()}", i, strings.Repeat(",a", 990))
			b.Spec.Resources = append(b.Spec.Resources, config(fmt.Sprint("b", i), list))
		}
	},
	"comprehensions": func(b *blueprint.Blueprint) {
		for i := range 100 {
			b.Spec.Resources = append(b.Spec.Resources, config(fmt.Sprint("a", i),
				fmt.Sprintf("${[%d]%s.size()}", i, strings.Repeat(".map(x,x)", 9))))
		}
	},
	"regular expressions": func(b *blueprint.Blueprint) {
		for i := range 9 {
			b.Spec.Resources = append(b.Spec.Resources,
				config(fmt.Sprint("a", i), fmt.Sprintf("${self.metadata.name.matches('a{%d}')}", 600+i)))
		}
	},
}

// A Blueprint uses somewhat less memory than estimated.
func TestMemoryIsEstimated(t *testing.T) {
	for name, change := range dense {
		t.Run(name, func(t *testing.T) {
			made := func() *blueprint.Blueprint {
				b := read(ofWebsites(" []"))
				b.Spec.Resources = nil
				change(b)
				return b
			}
			type kept struct {
				cached   [2]*blueprint.Blueprint // by the two engines
				compiled *blueprint.Compiled
				defined  any // the CustomResourceDefinition in the cache
			}
			keep := func() *kept {
				k := &kept{cached: [2]*blueprint.Blueprint{made(), made()}}
				var err error
				if k.compiled, err = blueprint.Compile(k.cached[0], blueprint.Options{}); err != nil {
					t.Fatal(err)
				}
				k.defined = k.compiled.Definition().DeepCopy()
				return k
			}
			const count = 3
			all := [count]*kept{keep()} // fills the caches of libraries
			all[0] = nil
			before := heap()
			for i := range all {
				all[i] = keep()
			}
			each := (int64(heap()) - int64(before)) / count
			estimate := all[0].cached[0].Spec.Memory()
			t.Logf("%d KiB, estimated as %d KiB", each>>10, estimate>>10)
			if each > estimate {
				t.Errorf("it takes %d bytes, and the estimate is %d", each, estimate)
			}
			if estimate > 10*each {
				t.Errorf("it takes %d bytes only, and the estimate is %d", each, estimate)
			}
			runtime.KeepAlive(all)
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // of pools, too
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
