package applied

import (
	"encoding/json"
	"math"
	"testing"
)

func parse(t *testing.T, text string) (value map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

func TestCovers(t *testing.T) {
	for name, c := range map[string]struct {
		config, object string
		want           bool
	}{
		"equal":                         {`{"a":1,"b":{"c":["x"]}}`, `{"a":1,"b":{"c":["x"]}}`, true},
		"the object has further fields": {`{"b":{"c":"x"}}`, `{"a":1,"b":{"c":"x","d":2}}`, true},
		"a value differs":               {`{"a":1}`, `{"a":2}`, false},
		"a field is missing":            {`{"a":{"b":1}}`, `{"a":{}}`, false},
		"a map is missing":              {`{"a":{"b":1}}`, `{}`, false},
		"a list has a further item":     {`{"a":["x"]}`, `{"a":["x","y"]}`, false},
		"a list has another order":      {`{"a":["x","y"]}`, `{"a":["y","x"]}`, false},
		"a list item has a default":     {`{"a":[{"n":"x"}]}`, `{"a":[{"n":"x","d":1}]}`, true},
		"a type differs":                {`{"a":"1"}`, `{"a":1}`, false},
		"a null is missing":             {`{"a":null}`, `{}`, true},
		"there are further owner references": {
			`{"ownerReferences":[{"uid":"a"}]}`,
			`{"ownerReferences":[{"uid":"b"},{"uid":"a","name":"n"}]}`, true,
		},
		"an owner reference is missing": {
			`{"ownerReferences":[{"uid":"a"}]}`,
			`{"ownerReferences":[{"uid":"b"}]}`, false,
		},
		"all owner references have been removed": {`{"ownerReferences":[{"uid":"a"}]}`, `{}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Covers(parse(t, c.config), parse(t, c.object)); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestCovers_Numbers(t *testing.T) {
	const above = 1 << 53 // float64 cannot represent the next integer
	for _, c := range []struct {
		config, object any
		want           bool
	}{
		{int64(1), float64(1), true},
		{float64(1), int64(1), true},
		{1, int64(1), true},
		{int32(1), int64(1), true},
		{int64(1), 1.5, false},
		{1.5, 1.5, true},
		{1e300, 1e300, true},
		{1e300, int64(math.MaxInt64), false},
		{int64(above + 1), int64(above), false},
		{int64(above + 1), float64(above), false},
		{int64(above), float64(above), true},
		{int64(math.MaxInt64), float64(1 << 63), false},
		{int64(math.MinInt64), float64(-1 << 63), true},
		{int64(1), "1", false},
		{int64(1), nil, false},
	} {
		if got := Covers(map[string]any{"a": c.config}, map[string]any{"a": c.object}); got != c.want {
			t.Errorf("%v (%T) and %v (%T): got %t", c.config, c.config, c.object, c.object, got)
		}
	}
}

func TestFieldSet_Owns(t *testing.T) {
	for name, c := range map[string]struct {
		fields, config string
		want           bool
	}{
		"all fields":                    {`{"f:a":{"f:b":{}}}`, `{"a":{"b":1}}`, true},
		"another manager owns a field":  {`{"f:a":{"f:b":{}}}`, `{"a":{"b":1,"c":2}}`, false},
		"other managers own all fields": {`{}`, `{"a":1}`, false},
		"a list as a whole":             {`{"f:a":{}}`, `{"a":[{"b":1}]}`, true},
		"another manager owns the list": {`{"f:x":{}}`, `{"a":[{"b":1}]}`, false},
		"items by key": {
			`{"f:a":{"k:{\"n\":\"x\"}":{".":{},"f:n":{},"f:v":{}}}}`,
			`{"a":[{"n":"x","v":1}]}`, true,
		},
		"another manager owns a field of an item": {
			`{"f:a":{"k:{\"n\":\"x\"}":{".":{},"f:n":{}}}}`,
			`{"a":[{"n":"x","v":1}]}`, false,
		},
		"another manager owns an item": {
			`{"f:a":{"k:{\"n\":\"x\"}":{".":{},"f:n":{}}}}`,
			`{"a":[{"n":"x"},{"n":"y"}]}`, false,
		},
		"items by value are not compared": {`{"f:a":{"v:\"x\"":{}}}`, `{"a":["x"]}`, true},
		"a map as a whole":                {`{"f:a":{}}`, `{"a":{"b":1}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			fields := FieldSet{}
			if err := json.Unmarshal([]byte(c.fields), &fields); err != nil {
				t.Fatal(err)
			}
			if got := fields.Owns(parse(t, c.config)); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
