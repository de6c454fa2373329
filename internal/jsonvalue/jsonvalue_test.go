package jsonvalue

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

type named string

type nested struct {
	Count int32             `json:"count"`
	Text  map[string]string `json:"text,omitempty"`
	Next  *nested           `json:"next,omitempty"`
}

func TestObject(t *testing.T) {
	for name, test := range map[string]struct{ value, want any }{
		"an int":                      {3, int64(3)},
		"an int32":                    {int32(-3), int64(-3)},
		"an uint64 that int64 holds":  {uint64(math.MaxInt64), int64(math.MaxInt64)},
		"an int64 beyond 2^53":        {int64(1<<53 + 1), int64(1<<53 + 1)},
		"a float32":                   {float32(0.1), 0.1},
		"a float64":                   {0.5, 0.5},
		"a json.Number":               {json.Number("7"), int64(7)},
		"a json.Number with decimals": {json.Number("7.5"), 7.5},
		"a named string":              {named("x"), "x"},
		"a pointer":                   {ptr.To(4), int64(4)},
		"a nil pointer":               {(*int)(nil), nil},
		"a map of strings":            {map[string]string{"a": "b"}, map[string]any{"a": "b"}},
		"a list of strings":           {[]string{"a"}, []any{"a"}},
		"a list of maps":              {[]map[string]any{{"n": 1}}, []any{map[string]any{"n": int64(1)}}},
		"a map with numbers as keys":  {map[int]string{1: "a"}, map[string]any{"1": "a"}},
		"bytes":                       {[]byte("text"), "dGV4dA=="},
		"a struct": {nested{Count: 1, Next: &nested{Text: map[string]string{"a": "b"}}}, map[string]any{
			"count": int64(1), "next": map[string]any{"count": int64(0), "text": map[string]any{"a": "b"}},
		}},
		"a quantity":       {resource.MustParse("100m"), "100m"},
		"a port":           {intstr.FromInt32(80), int64(80)},
		"a time":           {metav1.NewTime(time.Unix(0, 0)), "1970-01-01T00:00:00Z"},
		"an int in a list": {[]any{map[string]any{"n": []any{1}}}, []any{map[string]any{"n": []any{int64(1)}}}},
		"an empty list":    {[]any{1, []any{}}, []any{int64(1), []any{}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Object(map[string]any{"f": test.value})
			if err != nil || !reflect.DeepEqual(got["f"], test.want) {
				t.Fatalf("got %#v, %v; want %#v", got["f"], err, test.want)
			}
			_ = (&unstructured.Unstructured{Object: got}).DeepCopy() // panics on other types
		})
	}
}

func TestObject_ReturnsDecodedFieldsAsTheyAre(t *testing.T) {
	fields := map[string]any{"a": []any{int64(1), 1.5, "x", true, nil, map[string]any{}}}
	got, err := Object(fields)
	if err != nil || reflect.ValueOf(got).UnsafePointer() != reflect.ValueOf(fields).UnsafePointer() {
		t.Errorf("got another map: %v, %v", got, err)
	}
	fields["b"] = 1
	if got, err = Object(fields); err != nil || got["b"] != int64(1) || fields["b"] != 1 {
		t.Errorf("got %v, %v; the fields are %v", got, err, fields)
	}
}

func TestObject_RefusesWhatJSONCannotRepresent(t *testing.T) {
	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"a channel":                {make(chan int), "spec.items[1].f: must have a type that JSON can represent, but"},
		"a function":               {func() {}, "spec.items[1].f: must have a type that JSON can represent, but is a func()"},
		"not a number":             {math.NaN(), "spec.items[1].f: must be a finite number"},
		"infinity in a float32":    {float32(math.Inf(1)), "spec.items[1].f: must be a finite number"},
		"an uint64 beyond int64":   {uint64(math.MaxUint64), "spec.items[1].f: must be an integer that an int64 can hold"},
		"an uint64 in a struct":    {struct{ N uint64 }{math.MaxUint64}, "spec.items[1].f.N: must be an integer that"},
		"a number beyond float64":  {json.Number("1e999"), "spec.items[1].f: must be a number that a float64 can hold"},
		"a text that is no number": {json.Number("secret"), "spec.items[1].f: must be a number that a float64 can hold"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Object(map[string]any{"spec": map[string]any{"items": []any{1, map[string]any{"f": test.value}}}})
			var refused *Error
			if !errors.As(err, &refused) || !strings.HasPrefix(err.Error(), test.want) || got != nil {
				t.Errorf("got %v, %v; want %s", got, err, test.want)
			}
		})
	}
}
