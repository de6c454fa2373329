package expression

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/interpreter"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// program is what cel.Env.Program makes of the expression, with the options that the planner stands in for.
func program(t *testing.T, env *Env, text string) cel.Program {
	t.Helper()
	checked, issues := env.env.Compile(text)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	shape, err := shapeOf(checked.NativeRep().Expr())
	if err != nil {
		t.Fatal(err)
	}
	p, err := env.env.Program(checked,
		cel.CustomDecoratorV2(env.base.guardCalls),
		cel.CustomDecoratorV2(shape.endRounds),
		cel.EvalOptions(cel.OptOptimize, cel.OptTrackCost),
		cel.CostTrackerOptions(interpreter.PresenceTestHasCost(false)),
		cel.CostLimit(PerCallLimit),
		cel.CostTracking(&costs{}),
		cel.InterruptCheckFrequency(celconfig.CheckFrequency),
	)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A planned expression has the same value and cost as cel-go's program for it.
func TestPlansEvaluateAsProgramsOfCEL(t *testing.T) {
	variables := map[string]any{"self": map[string]any{
		"name": "flowers", "labels": map[string]any{"a": "b", "c": "d"},
		"ports": []any{int64(80), int64(443), int64(8080)}, "text": "a-b-c", "many": int64(2000),
	}}
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"1 + 2", "self.name + '-web'", "self.ports.map(p, {'port': p, 'name': string(p)})",
		"self.ports.filter(p, p > 100).size() > 1 && self.name.startsWith('f')",
		"self.?absent.orValue('none')", "self.?name.orValue(self.absent)", "self.?absent.or(self.?name).value()",
		"self.?absent.?further.or(optional.of(1)).value()", "optional.none().orValue(1 / 0)",
		"optional.of(1).orValue(1 / 0)", "self.ports.sort()", "lists.range(10).reverse()", "[1, 1, 2].distinct()",
		"[[1], [2, 3]].flatten()", "self.ports.slice(0, 2)", "self.ports.sortBy(p, -p)",
		"self.text.matches('^[a-z-]+$')", "self.text.find('[b-z]')", "self.text.replace('-', '+').split('+')",
		"cel.bind(x, self.name, x + x)", "self.labels.all(k, v, k != v)", "self.absent", "self.ports[9]", "1 / 0",
		"has(self.name) ? self.name : 'x'", "quantity('1Gi').isGreaterThan(quantity('1Mi'))", "type(self.name) == string",
		"'%s has %d'.format([self.name, self.ports.size()])", "lists.range(self.many).map(a, lists.range(self.many).map(b, b)).size()",
		"'x' in self.labels", "b'abc' == base64.decode('YWJj')", "self.ports.exists(p, p == 443) || self.absent",
	} {
		t.Run(text, func(t *testing.T) {
			compiled, err := env.Compile(text)
			if err != nil {
				t.Fatal(err)
			}
			got, cost, gotErr := compiled.steps.evaluate(t.Context(), variables)
			want, details, wantErr := program(t, env, text).ContextEval(t.Context(), variables)
			switch {
			case fmt.Sprint(gotErr) != fmt.Sprint(wantErr):
				t.Errorf("error %v, want %v", gotErr, wantErr)
			case wantErr == nil && got.Equal(want) != types.True:
				t.Errorf("got %v, want %v", got, want)
			}
			if cost != *details.ActualCost() {
				t.Errorf("cost %d, want %d", cost, *details.ActualCost())
			}
		})
	}
}

// An expression keeps its own steps, and neither environment nor functions.
func TestASmallExpressionKeepsLittleMemory(t *testing.T) {
	const count, most = 1000, 6 << 10
	env, err := NewEnv(Variable{Name: "self"})
	if err != nil {
		t.Fatal(err)
	}
	kept := make([]*Program, count)
	compile := func() {
		for i := range kept {
			if kept[i], err = env.Compile(fmt.Sprintf("self.spec.p%d.replace('a', 'b') + self.metadata.name", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	compile() // fills the parser's caches
	clear(kept)
	before := heap()
	compile()
	each := (int64(heap()) - int64(before)) / count
	t.Logf("%d bytes each", each)
	if each > most {
		t.Errorf("an expression keeps %d bytes, want at most %d", each, most)
	}
	runtime.KeepAlive(kept)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // of pools, too
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
