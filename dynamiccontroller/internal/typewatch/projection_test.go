package typewatch

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"
)

// jsonValues generates decoded JSON, and values that only a transform can produce.
func jsonValues(depth int) *rapid.Generator[any] {
	scalars := rapid.SampledFrom([]any{
		nil, "", "a", true, false, int64(0), int64(1), 0.0, 1.0, 1,
		map[string]any(nil), []any(nil), []string{"a"}, []string{"b"},
	})
	if depth == 0 {
		return scalars
	}
	inner := jsonValues(depth - 1)
	return rapid.OneOf(
		scalars,
		rapid.Map(rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), inner, 0, 3),
			func(m map[string]any) any { return m }),
		rapid.Map(rapid.SliceOfN(inner, 0, 3), func(s []any) any { return s }),
	)
}

func TestSameContentEqualsReflectDeepEqual(t *testing.T) {
	values := jsonValues(2)
	rapid.Check(t, func(t *rapid.T) {
		a, b := values.Draw(t, "a"), values.Draw(t, "b")
		if rapid.Bool().Draw(t, "equal") {
			b = a
		}
		x := &unstructured.Unstructured{Object: map[string]any{"spec": a}}
		y := &unstructured.Unstructured{Object: map[string]any{"spec": b}}
		if got, want := sameContent(x, y), reflect.DeepEqual(x, y); got != want {
			t.Errorf("sameContent returned %t, reflect.DeepEqual %t", got, want)
		}
	})
}

func TestSameContentOfOtherTypes(t *testing.T) {
	cyclic := func() *unstructured.Unstructured {
		content := map[string]any{}
		content["self"] = content
		return &unstructured.Unstructured{Object: content}
	}
	type custom struct{ text string }
	for name, test := range map[string]struct {
		a, b any
		want bool
	}{
		"objects that contain themselves":       {cyclic(), cyclic(), true},
		"a deep object that differs":            {nested(100, "a"), nested(100, "b"), false},
		"equal deep objects":                    {nested(100, "a"), nested(100, "a"), true},
		"equal custom types":                    {&custom{"a"}, &custom{"a"}, true},
		"custom types that differ":              {&custom{"a"}, &custom{"b"}, false},
		"whole object and partial metadata":     {widget(1), object("a", "1"), false},
		"partial metadata and whole object":     {object("a", "1"), widget(1), false},
		"partial metadata with another version": {object("a", "1"), object("a", "2"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sameContent(test.a, test.b); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func nested(depth int, leaf string) *unstructured.Unstructured {
	var value any = leaf
	for range depth {
		value = map[string]any{"a": value}
	}
	return &unstructured.Unstructured{Object: map[string]any{"spec": value}}
}

func TestSameContentDoesNotAllocate(t *testing.T) {
	a, b := widget(10), widget(10)
	if allocations := testing.AllocsPerRun(10, func() { sameContent(a, b) }); allocations > 0 {
		t.Errorf("%v allocations", allocations)
	}
}

// widget is an object with a spec of n fields.
func widget(n int) *unstructured.Unstructured {
	spec := map[string]any{}
	for i := range n {
		spec[fmt.Sprint("field", i)] = map[string]any{
			"text": "value", "number": int64(i), "list": []any{"x", true, map[string]any{"name": "y", "ratio": 0.5}},
		}
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "spec": spec,
	}}
	o.SetNamespace("ns")
	o.SetName("a")
	o.SetResourceVersion("1")
	return o
}

// BenchmarkSameContent reports the time for equal objects as a ratio to that of reflect.DeepEqual.
func BenchmarkSameContent(b *testing.B) {
	x, y := widget(20), widget(20)
	var ours, reflected time.Duration
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		began := time.Now()
		if !sameContent(x, y) {
			b.Fatal("not equal")
		}
		ours += time.Since(began)
		b.StopTimer()
		began = time.Now()
		if !reflect.DeepEqual(x, y) {
			b.Fatal("not equal")
		}
		reflected += time.Since(began)
		b.StartTimer()
	}
	b.ReportMetric(float64(ours)/float64(reflected), "x-DeepEqual")
}
