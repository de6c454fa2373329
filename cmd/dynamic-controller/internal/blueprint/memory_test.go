package blueprint_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// dense contains functions that fill a Blueprint with many parts of one kind.
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
	"collections": func(b *blueprint.Blueprint) {
		for i := range 100 {
			r, name := config(fmt.Sprint("a", i), ""), fmt.Sprint("a", i)
			for j := range 4 {
				r.ForEach = append(r.ForEach, map[string]string{fmt.Sprint("x", j): fmt.Sprintf("${lists.range(%d + %d)}", i, j)})
				name += fmt.Sprintf("-${x%d}", j)
			}
			r.Template["metadata"] = map[string]any{"name": name}
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
	"references": func(b *blueprint.Blueprint) {
		for i := range 100 {
			labels := map[string]string{}
			for j := range 9 {
				labels[fmt.Sprint("k", j)] = fmt.Sprintf("${self.metadata.name + '%d' + string(%d)}", i, j)
			}
			b.Spec.Resources = append(b.Spec.Resources, referTo(fmt.Sprint("a", i), blueprint.ExternalRefMetadata{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
			}))
		}
	},
	"comprehensions": func(b *blueprint.Blueprint) {
		for i := range 100 {
			b.Spec.Resources = append(b.Spec.Resources, config(fmt.Sprint("a", i),
				fmt.Sprintf("${[%d]%s.size()}", i, strings.Repeat(".map(x,x)", 9))))
		}
	},
	"status": func(b *blueprint.Blueprint) {
		b.Spec.Resources = []blueprint.Resource{config("a", "")}
		b.Spec.Type.Status = map[string]any{}
		for i := range 800 {
			b.Spec.Type.Status[fmt.Sprint("f", i)] = fmt.Sprintf("${self.metadata.name + '%d'}", i)
		}
		for i := range 10 {
			b.Spec.Type.Conditions = append(b.Spec.Type.Conditions, blueprint.Condition{
				Type: fmt.Sprint("A", i), Status: fmt.Sprintf("a.metadata.name == '%d'", i),
				Reason: fmt.Sprintf("${'A%d'}", i), Message: fmt.Sprintf("a ${self.metadata.name + '%d'}", i),
			})
		}
	},
	"regular expressions": func(b *blueprint.Blueprint) {
		for i := range 9 {
			b.Spec.Resources = append(b.Spec.Resources,
				config(fmt.Sprint("a", i), fmt.Sprintf("${self.metadata.name.matches('a{%d}')}", 600+i)))
		}
	},
}

// A Blueprint uses at most the estimated memory, and at least a tenth of it.
func TestMemory_estimate(t *testing.T) {
	for name, change := range dense {
		t.Run(name, func(t *testing.T) {
			made := func() *blueprint.Blueprint {
				b := read(ofWebsites(" []"))
				b.Spec.Resources = nil
				change(b)
				return b
			}
			type kept struct {
				cached   [2]*blueprint.Blueprint // cached by both engines
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
			all := [count]*kept{keep()} // fill the caches of libraries
			all[0] = nil
			before := heap()
			for i := range all {
				all[i] = keep()
			}
			each := (int64(heap()) - int64(before)) / count
			estimate := all[0].cached[0].Spec.Memory()
			t.Logf("%d KiB, estimated as %d KiB", each>>10, estimate>>10)
			if each > estimate {
				t.Errorf("%d bytes in use, more than the estimate of %d", each, estimate)
			}
			if estimate > 10*each {
				t.Errorf("only %d bytes in use, far below the estimate of %d", each, estimate)
			}
			runtime.KeepAlive(all)
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // the second collection also empties sync.Pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
