package applied

import (
	"encoding/json"
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
	if !Covers(map[string]any{"a": int64(1)}, map[string]any{"a": float64(1)}) {
		t.Error("1 does not equal 1.0")
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
